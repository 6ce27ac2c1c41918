#include "muster/placement/planner.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "muster/base/strings.h"
#include "tests/placement/machines.h"
#include "tests/placement/plans.h"

namespace muster {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int> local_ranks(const Plan& plan) {
  std::vector<int> all;
  for (const RankPlan& rank : plan.ranks)
    all.push_back(rank.local_rank);
  return all;
}

TEST(Planner, OneRankPerGpu) {
  const Plan plan = muster::plan(machine({4}), {});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1", "n0:2", "n0:3"));
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.notes, IsEmpty());
  EXPECT_EQ(plan.policy, "sequential");
  EXPECT_EQ(plan.ranks[2].reason, "sequential: 3 of 4 GPUs");
  EXPECT_EQ(plan.ranks[2].device.id(), test_uuid(0, 2));
  EXPECT_EQ(plan.ranks[2].device.model, "Test GPU");
}

TEST(Planner, AsManyRanksAsAsked) {
  EXPECT_THAT(devices(muster::plan(machine({4}), {.nproc_per_node = 2})),
              ElementsAre("n0:0", "n0:1"));
}

TEST(Planner, Selection) {
  const Plan plan = muster::plan(machine({8}), {.gpus = "7,2-3"});
  EXPECT_THAT(devices(plan), ElementsAre("n0:7", "n0:2", "n0:3"));
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 1, 2));
  EXPECT_EQ(visible(plan, 1), cat(test_uuid(0, 7), ",", test_uuid(0, 2), ",", test_uuid(0, 3)));
  EXPECT_EQ(plan.ranks[1].reason, "sequential: 2 of 3 in --gpus 7,2-3");
}

TEST(Planner, ExplicitList) {
  const Plan plan = muster::plan(machine({4}), {.map = {3, 1, 0, 2}});
  EXPECT_THAT(devices(plan), ElementsAre("n0:3", "n0:1", "n0:0", "n0:2"));
  EXPECT_EQ(plan.policy, "list");
  EXPECT_EQ(plan.ranks[0].reason, "list: place 1 of --map 3,1,0,2");
}

TEST(Planner, ListNumbersTheRanksWhenNothingElseDoes) {
  EXPECT_THAT(devices(muster::plan(machine({4}), {.map = {2, 0}})), ElementsAre("n0:2", "n0:0"));
}

TEST(Planner, HostsWithDifferentCounts) {
  const Plan plan = muster::plan(machine({2, 1, 5}), {});
  EXPECT_THAT(devices(plan),
              ElementsAre("n0:0", "n0:1", "n1:0", "n2:0", "n2:1", "n2:2", "n2:3", "n2:4"));
  EXPECT_THAT(local_ranks(plan), ElementsAre(0, 1, 0, 0, 1, 2, 3, 4));
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 1, 0, 0, 1, 2, 3, 4));
  for (size_t i = 0; i < plan.ranks.size(); ++i)
    EXPECT_EQ(plan.ranks[i].rank, static_cast<int>(i));
  EXPECT_EQ(visible(plan, 2), test_uuid(1, 0));
}

TEST(Planner, IdsAreEachHostsOwn) {
  const Plan plan = muster::plan(machine({4, 4}), {.gpus = "1,3"});
  EXPECT_THAT(devices(plan), ElementsAre("n0:1", "n0:3", "n1:1", "n1:3"));
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 1, 0, 1));
}

TEST(Planner, HostsWithoutGpusAmongOthers) {
  const Plan plan = muster::plan(machine({2, 0, 2}), {});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1", "n2:0", "n2:1"));
  EXPECT_THAT(
      plan.notes,
      ElementsAre("host n1: no GPU (no driver): no rank there, since other hosts have GPUs"));
  EXPECT_THAT(error_of(machine({2, 0}), {.nproc_per_node = 2}),
              HasSubstr("at most 0 ranks on host n1 (0 GPUs)"));
  EXPECT_THAT(
      devices(muster::plan(machine({2, 0}), {.nproc_per_node = 2, .surplus = Surplus::cpu})),
      ElementsAre("n0:0", "n0:1", "n1:cpu0", "n1:cpu1"));
  EXPECT_THAT(
      devices(muster::plan(machine({2, 0}), {.nproc_per_node = 2, .surplus = Surplus::drop})),
      ElementsAre("n0:0", "n0:1"));
  EXPECT_THAT(error_of(machine({2, 0}), {.nproc_per_node = 2, .surplus = Surplus::share}),
              HasSubstr("host n1"));
}

TEST(Planner, CpuSlotsWithoutGpus) {
  const Plan plan = muster::plan(machine({0}), {});
  EXPECT_THAT(devices(plan), ElementsAre("n0:cpu0", "n0:cpu1"));
  EXPECT_THAT(plan.notes,
              ElementsAre("no GPU (no driver): 2 CPU slots, one rank each; --cpu-slots N or "
                          "MUSTER_CPU_SLOTS=N changes how many"));
  EXPECT_EQ(plan.ranks[1].device.id(), "cpu:1");
  EXPECT_EQ(plan.ranks[1].reason, "no GPU: CPU slot 1");
  EXPECT_EQ(visible(plan, 0), "untouched");
}

TEST(Planner, SlotsAreADefaultAndNoLimit) {
  const Plan plan = muster::plan(machine({0}), {.nproc_per_node = 5});
  EXPECT_EQ(plan.ranks.size(), 5);
  EXPECT_EQ(plan.ranks[4].device.id(), "cpu:4");
  EXPECT_THAT(plan.notes, ElementsAre("no GPU (no driver): 5 ranks on CPU slots"));
}

TEST(Planner, CpuOnlyIgnoresGpus) {
  const Plan plan = muster::plan(machine({4}), {.cpu_only = true, .masks = {.cuda = "9"}});
  EXPECT_THAT(devices(plan), ElementsAre("n0:cpu0", "n0:cpu1"));
  EXPECT_EQ(plan.ranks[0].reason, "CPU asked for: CPU slot 0");
  EXPECT_THAT(error_of(machine({4}), {.cpu_only = true, .gpus = "0"}),
              HasSubstr("got both (--gpus 0)"));
  EXPECT_THAT(error_of(machine({4}), {.cpu_only = true, .gpu_only = true}), HasSubstr("got both"));
  EXPECT_THAT(error_of(machine({4}), {.cpu_only = true, .map = {1}}),
              HasSubstr("got both (--map)"));
}

TEST(Planner, GpusAskedForWhereThereAreNone) {
  EXPECT_EQ(error_of(machine({0}), {.gpu_only = true}, ErrorCode::unavailable),
            "--nproc-per-node gpu: expected a GPU that can be used, got none: host n0 has no "
            "usable GPU: no "
            "driver; "
            "--nproc-per-node cpu runs on CPU slots");
  EXPECT_THAT(error_of(machine({0}), {.gpus = "0"}, ErrorCode::unavailable),
              HasSubstr("--gpus 0: expected a GPU"));
  EXPECT_THAT(error_of(machine({0}), {.gpus = "all"}, ErrorCode::unavailable),
              HasSubstr("no driver"));
  EXPECT_THAT(error_of(machine({0}), {.map = {0}}, ErrorCode::unavailable),
              HasSubstr("--map: expected a GPU"));
  EXPECT_THAT(error_of(machine({2, 0}), {.gpu_only = true}, ErrorCode::unavailable),
              HasSubstr("host n1"));
}

// Every flag that needs GPUs leaves out the host that a plan without flags does.
TEST(Planner, AHostWithoutGpusIsLeftOutWhateverTheFlag) {
  Inventory inventory = machine({2, 0});
  inventory.hosts[0].gpus[0].model = inventory.hosts[0].gpus[1].model = "H100";
  for (Gpu& gpu : inventory.hosts[0].gpus)
    gpu.memory_total_bytes = gpu.memory_free_bytes = 80 * kGiB;
  inventory.hosts[0].gpu_links.assign(2, std::vector<Link>(2, Link{.kind = LinkKind::pix}));
  const Request requests[] = {{},
                              {.policy = "topology"},
                              {.policy = "spread"},
                              {.gpus = "model=H100"},
                              {.gpus = "free:2"},
                              {.gpus = "0,1"},
                              {.map = {0, 1}},
                              {.rank_memory_bytes = {40 * kGiB}}};
  for (const Request& request : requests) {
    const Plan plan = muster::plan(inventory, request);
    EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1")) << request.policy << request.gpus.text;
    EXPECT_THAT(
        plan.warnings,
        Contains("host n1: no GPU (no driver): no rank there, since other hosts have GPUs"));
  }
  const std::string lacks = "host n1 has no usable GPU: no driver";
  EXPECT_THAT(error_of(inventory, {.gpus = "n1:0;n0:0"}, ErrorCode::unavailable), HasSubstr(lacks))
      << "a host that is named";
  EXPECT_THAT(error_of(inventory,
                       {.policy = "topology",
                        .hosts = {{.name = "n0", .nproc = 2}, {.name = "n1", .nproc = 1}}},
                       ErrorCode::unavailable),
              HasSubstr(lacks))
      << "ranks that are asked for";
  std::ranges::reverse(inventory.hosts);
  EXPECT_THAT(error_of(inventory, {.gpus = "model=A100"}, ErrorCode::unavailable),
              HasSubstr("got none that fits: host n0 has GPUs 0, 1"))
      << "what could have been selected";
}

TEST(Planner, NothingAskedFor) {
  EXPECT_EQ(error_of(machine({2}), {.nproc_per_node = 0}),
            "--nproc-per-node: expected at least 1 rank, got 0");
  EXPECT_THAT(error_of(machine({2}), {.nproc_per_node = -3}), HasSubstr("got -3"));
  EXPECT_THAT(error_of({.source = "empty.json", .simulated = true, .hosts = {}}, {}),
              HasSubstr("at least one host, got none (empty.json)"));
}

TEST(Planner, BadPolicy) {
  EXPECT_THAT(error_of(machine({2}), {.policy = "x"}),
              HasSubstr("expected one of sequential, list, fastest, memory, topology, spread, "
                        "pack, numa, mesh, got 'x'"));
  EXPECT_THAT(error_of(machine({2}), {.policy = "sequential", .map = {1, 0}}),
              HasSubstr("--map: expected policy list"));
  EXPECT_THAT(error_of(machine({2}), {.policy = "list"}), HasSubstr("give --map"));
  EXPECT_THAT(error_of(machine({2}), {.nproc_per_node = 1, .map = {1, 0}}),
              HasSubstr("expected 1 GPU index"));
  EXPECT_THAT(error_of(machine({2}), {.map = {0, 2}}), HasSubstr("got 2 at place 2"));
  EXPECT_EQ(error_of(machine({2}), {.map = {0, 0}}),
            "--policy list: expected a GPU of its own for each rank, got GPU 0 for local ranks 0 "
            "and 1 of host n0; "
            "--surplus share allows it");
}

// Four ranks on a host of two GPUs, by each surplus rule.
TEST(Planner, SurplusError) {
  EXPECT_EQ(error_of(machine({2}), {.nproc_per_node = 4}),
            "--nproc-per-node: expected at most 2 ranks on host n0 (2 GPUs), got 4; give "
            "--nproc-per-node 2 "
            "or less, "
            "or say what the others get: --surplus cpu, drop or share");
}

TEST(Planner, SurplusCpu) {
  const Plan plan = muster::plan(machine({2}), {.nproc_per_node = 4, .surplus = Surplus::cpu});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1", "n0:cpu0", "n0:cpu1"));
  EXPECT_THAT(plan.notes,
              ElementsAre("4 ranks asked for, 2 GPUs: the other 2 on CPU slots (--surplus cpu)"));
  EXPECT_EQ(plan.ranks[2].reason, "surplus: 2 GPUs taken; CPU slot 0");
  EXPECT_EQ(visible(plan, 3), "") << "a CPU rank must not take a GPU of the others";
}

TEST(Planner, SurplusDrop) {
  const Plan plan = muster::plan(machine({2}), {.nproc_per_node = 4, .surplus = Surplus::drop});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1"));
  EXPECT_THAT(plan.notes, ElementsAre("4 ranks asked for, 2 GPUs: 2 left out (--surplus drop)"));
}

TEST(Planner, SurplusShare) {
  const Plan plan = muster::plan(machine({2}), {.nproc_per_node = 5, .surplus = Surplus::share});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:1", "n0:0", "n0:1", "n0:0"));
  EXPECT_EQ(plan.visibility, Visibility::own);
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_EQ(visible(plan, 3), test_uuid(0, 1));
  EXPECT_EQ(plan.ranks[3].reason, "sequential: 2 of 2 GPUs; shared by 2 ranks");
  EXPECT_THAT(plan.notes,
              ElementsAre("5 ranks share 2 GPUs (--surplus share), each sees its own GPU alone"));
}

TEST(Planner, SharingByList) {
  const Plan plan = muster::plan(machine({2}), {.map = {1, 1, 0}, .surplus = Surplus::share});
  EXPECT_THAT(devices(plan), ElementsAre("n0:1", "n0:1", "n0:0"));
  EXPECT_EQ(plan.visibility, Visibility::own);
}

TEST(Planner, SurplusRuleWithoutSurplusChangesNothing) {
  for (const auto surplus : {Surplus::cpu, Surplus::drop, Surplus::share}) {
    EXPECT_EQ(muster::plan(machine({2}), {.nproc_per_node = 2, .surplus = surplus}),
              muster::plan(machine({2}), {}));
  }
}

TEST(Planner, UnhealthyGpusAreLeftOut) {
  Inventory inventory = machine({3});
  inventory.hosts[0].gpus[1].health = "GPU is lost";
  const Plan plan = muster::plan(inventory, {});
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:2"));
  EXPECT_THAT(ordinals(plan), ElementsAre(0, 1));
  EXPECT_THAT(plan.notes, ElementsAre("left out GPU 1: GPU is lost"));
  EXPECT_THAT(error_of(inventory, {.gpus = "0,1"}), HasSubstr("left out: GPU 1: GPU is lost"));
  EXPECT_THAT(error_of(inventory, {.nproc_per_node = 3}), HasSubstr("at most 2 ranks"));
}

TEST(Planner, AllGpusUnhealthyIsNoCpuJob) {
  Inventory inventory = machine({1});
  inventory.hosts[0].gpus[0].health = "GPU is lost";
  EXPECT_THAT(error_of(inventory, {}, ErrorCode::unavailable),
              HasSubstr("left out: GPU 0: GPU is lost; --nproc-per-node cpu runs on CPU slots"));
  EXPECT_EQ(muster::plan(inventory, {.cpu_only = true}).ranks.size(), 2);
  Inventory two = machine({1, 2});
  two.hosts[0].gpus[0].health = "GPU is lost";
  EXPECT_THAT(devices(muster::plan(two, {})), ElementsAre("n1:0", "n1:1"));
}

TEST(Planner, SameNoteOfManyHostsIsOne) {
  EXPECT_THAT(muster::plan(machine({0, 0, 0, 0, 0, 0}), {}).notes,
              ElementsAre(HasSubstr("every host: no GPU")));
  EXPECT_THAT(muster::plan(machine({1, 0, 0}), {}).notes,
              ElementsAre(HasSubstr("hosts n1, n2: no GPU")));
  EXPECT_THAT(muster::plan(machine({1, 0, 0, 0, 0, 0}), {}).notes,
              ElementsAre(HasSubstr("hosts n1, n2 and 3 more: no GPU")));
}

TEST(Planner, ListByAFunctionHostByHost) {
  const Plan plan = muster::plan(machine({3, 2}), {.choose = [](const Host&, int num_ranks) {
                                   std::vector<int> down;
                                   for (int i = num_ranks; i-- > 0;)
                                     down.push_back(i);
                                   return down;
                                 }});
  EXPECT_THAT(devices(plan), ElementsAre("n0:2", "n0:1", "n0:0", "n1:1", "n1:0"));
  EXPECT_EQ(plan.policy, "list");
  EXPECT_EQ(plan.ranks[0].reason, "list: place 1 of what Request::choose gave");
  const auto choose = [](const Host&, int) {
    return std::vector<int>{0, 0};
  };
  EXPECT_THAT(error_of(machine({2}), {.map = {0}, .choose = choose}), HasSubstr("got both"));
  EXPECT_THAT(error_of(machine({2}), {.choose = choose}),
              HasSubstr("Request::choose: expected a GPU of its own"));
}

TEST(Planner, HostsChosenAndOrdered) {
  const Inventory inventory = machine({2, 4, 1});
  const Plan plan =
      muster::plan(inventory, {.hosts = {{.name = "n1", .nproc = 3}, {.name = "n0"}}});
  EXPECT_THAT(devices(plan), ElementsAre("n1:0", "n1:1", "n1:2", "n0:0", "n0:1"));
  EXPECT_EQ(plan.ranks[0].host_index, 0);
  EXPECT_EQ(plan.ranks[3].host_index, 1) << "the place among the job's hosts";
  EXPECT_EQ(ranks_on_host(plan, 1).first, 3);
  const Plan some =
      muster::plan(inventory, {.nproc_per_node = 1, .hosts = {{"n1", 2}, {"n2", {}}}});
  EXPECT_THAT(devices(some), ElementsAre("n1:0", "n1:1", "n2:0"));
}

TEST(Planner, BadHosts) {
  const Inventory inventory = machine({2, 4, 1});
  EXPECT_EQ(error_of(inventory, {.hosts = {{.name = "n7"}}}),
            "--hosts: expected hosts of test (n0, n1, n2), got 'n7'");
  EXPECT_THAT(error_of(inventory, {.hosts = {{"n1", 1}, {"n1", 1}}}),
              HasSubstr("each host once, got 'n1' again"));
  EXPECT_THAT(error_of(inventory, {.hosts = {{"n1", 0}}}),
              HasSubstr("at least 1 rank, got 0 (host n1)"));
  EXPECT_THAT(error_of(machine(std::vector<int>(20, 1)), {.hosts = {{"x", {}}}}),
              HasSubstr("n7 and 12 more), got 'x'"));
}

TEST(Planner, GpusOfNamedHosts) {
  const Plan plan = muster::plan(machine({4, 4, 4}), {.gpus = "n2:0,1;n0:2-3"});
  EXPECT_THAT(devices(plan), ElementsAre("n0:2", "n0:3", "n2:0", "n2:1"));
  EXPECT_THAT(plan.notes, ElementsAre("host n1: no rank there, since --gpus does not name it"));
  EXPECT_THAT(devices(muster::plan(machine({4, 4}), {.nproc_per_node = 1, .gpus = "n1:3"})),
              ElementsAre("n1:3"));
  EXPECT_THAT(error_of(machine({2, 2}), {.gpus = "n0:0;n9:1"}),
              HasSubstr("expected a host of the job (n0, n1), got n9 (at character 6)"));
  EXPECT_THAT(error_of(machine({2, 2}), {.gpus = "n1:0", .hosts = {{"n0", {}}}}),
              HasSubstr("a host of the job (n0), got n1"));
}

TEST(Planner, FiltersThatLeaveNothing) {
  Inventory inventory = machine({2, 2});
  inventory.hosts[1].gpus[1].model = "NVIDIA H100";
  const Plan plan = muster::plan(inventory, {.gpus = "model=h100"});
  EXPECT_THAT(devices(plan), ElementsAre("n1:1"));
  EXPECT_THAT(
      plan.notes,
      ElementsAre("host n0: no GPU (none fits --gpus model=h100): no rank there, since other "
                  "hosts have GPUs"));
  EXPECT_THAT(error_of(inventory, {.gpus = "model=B200"}, ErrorCode::unavailable),
              HasSubstr("--gpus model=B200: expected at least one GPU, got none that fits: host n0 "
                        "has GPUs 0, 1"));
}

TEST(Planner, PoliciesThatNeedGpusAreNoCpuJob) {
  EXPECT_THAT(error_of(machine({0}), {.policy = "topology"}, ErrorCode::unavailable),
              HasSubstr("--policy topology: expected a GPU"));
  EXPECT_THAT(error_of(machine({2}), {.cpu_only = true, .policy = "spread"}),
              HasSubstr("got both (--policy spread)"));
  EXPECT_EQ(muster::plan(machine({0}), {.policy = "sequential"}).ranks.size(), 2);
}

TEST(Planner, NearCpusAndPciAreTheGpus) {
  Inventory inventory = machine({1});
  inventory.hosts[0].gpus[0].pci.value = "0000:3b:00.0";
  inventory.hosts[0].gpus[0].numa_node = 1;
  inventory.hosts[0].gpus[0].near_cpus = "8-15";
  const RankPlan rank = muster::plan(inventory, {}).ranks.at(0);
  EXPECT_EQ(rank.device.pci.value, "0000:3b:00.0");
  EXPECT_EQ(rank.numa_node, 1);
  EXPECT_EQ(rank.cpus, "8-15");
  EXPECT_FALSE(rank.bind_cpus);
}

TEST(Planner, ManyHosts) {
  const Plan plan = muster::plan(machine(std::vector<int>(2500, 8)), {.global_batch = 20'001});
  ASSERT_EQ(plan.ranks.size(), 20'000);
  EXPECT_EQ(plan.ranks.back().host, "n2499");
  EXPECT_EQ(plan.ranks.back().device.index.value, 7);
  EXPECT_EQ(plan.ranks.front().batch_share, 2);
}

TEST(Planner, RanksThatAreNotWhereTheyWereAskedForAreAWarning) {
  const auto warnings = [](const Inventory& inventory, const Request& request) {
    return muster::plan(inventory, request).warnings;
  };
  const Inventory two = machine({2});
  EXPECT_THAT(warnings(two, {.masks = {.cuda = "0,0"}}),
              ElementsAre(HasSubstr("twice"), HasSubstr("CPU slots")))
      << "the GPUs are hidden by mistake";
  EXPECT_THAT(warnings(two, {.masks = {.cuda = "0,9"}}),
              ElementsAre(HasSubstr("shows 1 of 2 GPUs")));
  for (const char* const on_purpose : {"", "-1", "NoDevFiles", "1,0", "1"})
    EXPECT_THAT(warnings(two, {.masks = {.cuda = on_purpose}}), IsEmpty()) << on_purpose;
  Inventory sick = two;
  sick.hosts[0].gpus[1].health = "GPU is lost";
  EXPECT_THAT(warnings(sick, {}), ElementsAre("left out GPU 1: GPU is lost"));
  Inventory none = machine({0});
  EXPECT_THAT(warnings(none, {}), IsEmpty());
  none.hosts[0].gpus_expected = true;
  EXPECT_THAT(warnings(none, {}), ElementsAre(HasSubstr("CPU slots")));
  EXPECT_THAT(warnings(none, {.cpu_only = true}), IsEmpty());
  EXPECT_THAT(warnings(machine({1, 0}), {}), ElementsAre(HasSubstr("no rank there")));
}

TEST(Planner, GpusThatNoRankHasAreANote) {
  const auto notes = [&](Request request) {
    return muster::plan(machine({8}), request).notes;
  };
  const auto two = ElementsAre("GPU 6, GPU 7 are not used: 2 ranks, each with 3 GPUs");
  EXPECT_THAT(notes({.gpus_per_rank = 3}), two);
  EXPECT_THAT(notes({.nproc_per_node = 2, .gpus_per_rank = 3}), two);
  EXPECT_THAT(notes({.gpus = "!7", .gpus_per_rank = 3}),
              ElementsAre("GPU 6 is not used: 2 ranks, each with 3 GPUs"));
  EXPECT_THAT(notes({.gpus = "0-6", .map = {1, 0, 2, 6, 5, 4}}),
              ElementsAre("GPU 3 is not used: 6 ranks, each with 1 GPU"));
  EXPECT_THAT(notes({.mesh = {{"dp", 2}, {"tp", 3}}}),
              testing::Contains("GPU 6, GPU 7 are not used: 6 ranks, each with 1 GPU"));
  EXPECT_THAT(notes({.nproc_per_node = 4}), IsEmpty()) << "that many were asked for";
  EXPECT_THAT(notes({.gpus_per_rank = 4}), IsEmpty());
}

TEST(Planner, RankMemoryWithoutAUnitIsRefused) {
  Inventory box = machine({1});
  box.hosts[0] = host_with_free({40});
  EXPECT_THROW(muster::plan(box, {.rank_memory_bytes = {40}}), Error);
  EXPECT_EQ(muster::plan(box, {.rank_memory_bytes = {40 * kGiB}}).ranks.size(), 1U);
  EXPECT_EQ(muster::plan(box, {.rank_memory_bytes = {0}}).ranks.size(), 1U);
}

TEST(Planner, GpusThatAreNamedAndNotUsedAreAWarning) {
  const Inventory eight = machine({8});
  const auto warnings = [&](Request request) {
    return muster::plan(eight, request).warnings;
  };
  EXPECT_THAT(warnings({.nproc_per_node = 1, .gpus = "2,4"}),
              ElementsAre(HasSubstr(
                  "GPU 4 of --gpus 2,4 is not used: 1 rank with 1 GPU; --gpus-per-rank")));
  EXPECT_THAT(warnings({.nproc_per_node = 2, .gpus = "2-4,6"}),
              ElementsAre(HasSubstr("GPU 4, GPU 6 of")));
  EXPECT_THAT(warnings({.nproc_per_node = 2, .gpus = "2,4"}), IsEmpty());
  EXPECT_THAT(warnings({.nproc_per_node = 1, .gpus = "!3"}), IsEmpty()) << "GPUs to choose from";
  EXPECT_THAT(warnings({.nproc_per_node = 1}), IsEmpty());
}

TEST(Planner, ScoresAreUsedOrRefused) {
  const Inventory two = machine({2});
  const Scores scores = {{"0", 1}, {"1", 2}};
  EXPECT_THAT(devices(muster::plan(two, {.scores = scores})), ElementsAre("n0:1", "n0:0"));
  EXPECT_EQ(muster::plan(two, {.scores = scores, .global_batch = 6}).policy, "sequential");
  EXPECT_EQ(muster::plan(two, {.gpus = "fastest:1", .scores = scores}).policy, "sequential");
  const auto error_of = [&](Request request) {
    request.scores = scores;
    try {
      muster::plan(two, request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of({.policy = "sequential"}), HasSubstr("--scores: expected policy fastest"));
  EXPECT_THAT(error_of({.map = {1}}), HasSubstr("got policy list alone"));
}

TEST(Planner, AMapForTheHostIsToldWhatThereIs) {
  std::vector<std::string> told;
  Request request{.nproc_per_node = 1, .gpus = "2-3,0"};
  request.map_of =
      [&](const Host& host, const std::vector<int>& gpus, std::optional<int> num_ranks) {
        told.push_back(cat(host.name, " ", join(gpus, ","), " ", num_ranks.value_or(-1)));
        return std::vector<int>{3};
      };
  EXPECT_THAT(devices(muster::plan(machine({4}), request)), ElementsAre("n0:3"));
  EXPECT_THAT(told, testing::Each(testing::Eq("n0 2,3,0 1")));
  request.nproc_per_node = {};
  EXPECT_EQ(muster::plan(machine({4}), request).ranks.size(), 1U) << "as many as it names";
  EXPECT_EQ(told.back(), "n0 2,3,0 -1");
}

TEST(Planner, ReasonsOfLongListsStayShort) {
  Request request{.gpus = "", .surplus = Surplus::share};
  for (int i = 0; i < 1000; ++i)
    request.map.push_back(i % 4);
  const Plan plan = muster::plan(machine({4}), request);
  EXPECT_EQ(plan.ranks.size(), 1000U);
  EXPECT_LT(plan.ranks[999].reason.size(), 100U) << plan.ranks[999].reason;
  std::string all = "0";
  for (int i = 1; i < 500; ++i)
    all += cat(",", i);
  EXPECT_LT(muster::plan(machine({500}), {.gpus = all}).ranks[1].reason.size(), 150U);
}

TEST(Planner, SeveralGpusForEachRank) {
  const Plan plan = muster::plan(machine({8}), {.gpus_per_rank = 4});
  ASSERT_EQ(plan.ranks.size(), 2U);
  EXPECT_THAT(devices(plan), ElementsAre("n0:0", "n0:4"));
  EXPECT_EQ(visible(plan, 1),
            cat(test_uuid(0, 4), ",", test_uuid(0, 5), ",", test_uuid(0, 6), ",", test_uuid(0, 7)));
  EXPECT_EQ(plan.ranks[1].more_devices.size(), 3U);
  EXPECT_EQ(plan.ranks[1].device.ordinal.value, 0);
  EXPECT_EQ(plan.ranks[1].more_devices[2].ordinal.value, 3);
  EXPECT_THAT(plan.notes, IsEmpty());
  const Plan named =
      muster::plan(machine({8}), {.nproc_per_node = 1, .gpus = "2,4", .gpus_per_rank = 2});
  EXPECT_EQ(visible(named, 0), cat(test_uuid(0, 2), ",", test_uuid(0, 4)));
  EXPECT_THAT(named.warnings, IsEmpty());
  EXPECT_THAT(muster::plan(machine({8}), {.gpus = "0-4", .gpus_per_rank = 2}).warnings,
              ElementsAre(HasSubstr("GPU 4 of --gpus 0-4 is not used: 2 ranks, each with 2 GPUs")));
}

TEST(Planner, SeveralGpusForEachRankThatCannotBeHad) {
  const auto error_of = [](Request request) {
    request.gpus_per_rank = 2;
    try {
      muster::plan(machine({3}), request);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error_of({.nproc_per_node = 2}),
              HasSubstr("at most 1 rank on host n0 (3 GPUs for ranks of 2)"));
  EXPECT_THAT(error_of({.gpus = "0"}), HasSubstr("at least one rank"));
  EXPECT_THAT(error_of({.rank_memory_bytes = {1}}), HasSubstr("no --rank-memory beside it"));
  EXPECT_THAT(error_of({.cpu_only = true}), HasSubstr("no --nproc-per-node cpu beside it"));
  EXPECT_EQ(error_of({.map = {2, 0}}), "none");
}

}  // namespace
}  // namespace muster
