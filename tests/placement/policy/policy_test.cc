#include "muster/placement/policy/policy.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/planner.h"
#include "muster/placement/selection/gpu_facts.h"
#include "tests/placement/machines.h"
#include "tests/placement/plans.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// What `policy` gives each of `num_ranks` ranks (0: its capacity) of a host, by default with 4
// GPUs.
std::vector<int> choices(const char* policy,
                         const Request& request,
                         int num_ranks = 0,
                         const Host& host = gpu_host(0, 4)) {
  const std::vector<UsableGpu> gpus = usable_gpus(host, {}).gpus;
  const PolicyInput input{host, gpus, request};
  const Policy& chosen = find_policy(policy);
  std::vector<int> indices;
  for (const auto& choice :
       chosen.choose(input, num_ranks > 0 ? num_ranks : chosen.capacity(input))) {
    indices.push_back(host.gpus[choice.gpu.position].index.value);
    EXPECT_THAT(choice.reason, testing::StartsWith(policy));
  }
  return indices;
}

template <class Function>
std::string policy_error(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Policy, TableIsConsistent) {
  std::vector<std::string> names;
  for (const Policy& policy : policies()) {
    names.emplace_back(policy.name);
    EXPECT_EQ(find_policy(policy.name).choose, policy.choose);
    EXPECT_STRNE(policy.summary, "");
  }
  EXPECT_THAT(
      names,
      ElementsAre(
          "sequential", "list", "fastest", "memory", "topology", "spread", "pack", "numa", "mesh"));
}

TEST(Policy, UnknownNameListsThoseThereAre) {
  EXPECT_EQ(policy_error([] { find_policy("fastets"); }),
            "--policy: expected one of sequential, list, fastest, memory, topology, spread, pack, "
            "numa, mesh, got "
            "'fastets'");
}

TEST(Sequential, InOrderAndAround) {
  EXPECT_THAT(choices("sequential", {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choices("sequential", {}, 2), ElementsAre(0, 1));
  EXPECT_THAT(choices("sequential", {}, 6), ElementsAre(0, 1, 2, 3, 0, 1));
}

TEST(List, AnyMapping) {
  EXPECT_THAT(choices("list", {.map = {3, 1, 0, 2}}), ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(choices("list", {.map = {2}}), ElementsAre(2));
  EXPECT_THAT(choices("list", {.map = {3, 1}}, 3), ElementsAre(3, 1, 3));
}

TEST(List, LengthAndRange) {
  EXPECT_THAT(policy_error([] { choices("list", {}); }), HasSubstr("got none; give --map"));
  EXPECT_EQ(policy_error([] { choices("list", {.map = {0, 4}}); }),
            "--map: expected a GPU of host n0 that can be used (0, 1, 2, 3), got 4 at place 2");
  EXPECT_THAT(policy_error([] { choices("list", {.map = {0, -1}}); }),
              HasSubstr("got -1 at place 2"));
  EXPECT_EQ(
      policy_error([] { choices("list", {.map = {0, 1, 2}}, 2); }),
      "--map: expected 2 GPU indices, one for each rank of host n0, got 3; give as many of one "
      "as of the other");
}

TEST(List, MessagesCountWhatIsListed) {
  const auto said = [](const Request& request) {
    return error_of(machine({8}), request);
  };
  EXPECT_THAT(said({.nproc_per_node = 4, .map = {0, 1}}),
              HasSubstr("at most 2 ranks on host n0 (2 listed GPUs), got 4; "));
  EXPECT_THAT(said({.nproc_per_node = 2, .gpus_per_rank = 2, .map = {0, 1}}),
              HasSubstr("at most 1 rank on host n0 (2 listed GPUs for ranks of 2), got 2; "));
  EXPECT_THAT(said({.gpus_per_rank = 2, .map = {0, 1, 2}}),
              HasSubstr("expected 2 GPU indices, one for each GPU of the ranks of host n0, got 3"));
  EXPECT_THAT(error_of(machine({8}), {.gpus_per_rank = 4, .map = {0, 1}}, ErrorCode::unavailable),
              HasSubstr("no rank there: 2 listed GPUs, fewer than --gpus-per-rank 4"));
  const Plan fewer =
      muster::plan(machine({8}), {.nproc_per_node = 3, .map = {0, 1}, .surplus = Surplus::drop});
  EXPECT_THAT(fewer.notes,
              ElementsAre("3 ranks asked for, 2 listed GPUs: 1 left out (--surplus drop)"));
}

TEST(List, ByAFunction) {
  const Request request{.choose = [](const Host& host, int num_ranks) {
    EXPECT_EQ(host.name, "n0");
    return num_ranks == 4 ? std::vector<int>{3, 1, 0, 2} : std::vector<int>{2};
  }};
  EXPECT_THAT(choices("list", request), ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(choices("list", request, 1), ElementsAre(2));
  EXPECT_EQ(policy_error([&] { choices("list", request, 3); }),
            "Request::choose: expected 3 GPU indices, one for each rank of host n0, got 1; give as "
            "many of one as of the other");
  EXPECT_THAT(
      policy_error([] {
        choices("list", {.choose = [](const Host&, int) { return std::vector<int>{9, 0, 1, 2}; }});
      }),
      HasSubstr("Request::choose: expected a GPU of host n0 that can be used (0, 1, 2, 3), got 9"));
}

TEST(Fastest, HighestScoreFirst) {
  const Request request{.scores = {{"0", 100}, {"1", 90}, {"2", 80}, {"3", 110}}};
  EXPECT_THAT(choices("fastest", request), ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(choices("fastest", request, 2), ElementsAre(3, 0));
  EXPECT_THAT(choices("fastest", request, 5), ElementsAre(3, 0, 1, 2, 3));
}

TEST(Fastest, TiesByIndex) {
  EXPECT_THAT(choices("fastest", {.scores = {{"Test GPU", 5}, {"2", 6}}}), ElementsAre(2, 0, 1, 3));
}

TEST(Fastest, UuidThenHostThenIndexThenModel) {
  const Request request{.scores = {{test_uuid(0, 3), 40},
                                   {"3", 1},
                                   {"n0:2", 30},
                                   {"2", 2},
                                   {"n1:1", 99},
                                   {"1", 20},
                                   {"Test GPU", 10}}};
  EXPECT_THAT(choices("fastest", request), ElementsAre(3, 2, 1, 0));
}

TEST(Fastest, EveryGpuNeedsAScore) {
  EXPECT_THAT(policy_error([] { choices("fastest", {}); }),
              HasSubstr("got none for GPU 0 of host n0"));
  EXPECT_THAT(policy_error([] { choices("fastest", {.scores = {{"0", 1}, {"1", 1}, {"3", 1}}}); }),
              HasSubstr("expected a score for each GPU, got none for GPU 2 of host n0 (Test GPU, " +
                        test_uuid(0, 2) + "); measure them with `muster bench device`"));
  Host unnamed = host_with_free({1});
  unnamed.gpus[0].model.clear();
  EXPECT_THAT(policy_error([&] { choices("fastest", {}, 1, unnamed); }),
              HasSubstr("(" + test_uuid(0, 0) + "); measure"));
}

TEST(Memory, BestFitDecreasing) {
  const Host host = host_with_free({40, 10, 80, 20});
  EXPECT_THAT(choices("memory", {.rank_memory_bytes = {15 * kGiB, 60 * kGiB, 5 * kGiB}}, 3, host),
              ElementsAre(3, 2, 1));
  EXPECT_THAT(choices("memory", {.rank_memory_bytes = {10 * kGiB}}, 4, host),
              ElementsAre(1, 3, 0, 2))
      << "the last need is that of all after it";
}

TEST(Memory, WithoutANumberAsManyAsFit) {
  const Host host = host_with_free({40, 10, 80, 20});
  EXPECT_THAT(choices("memory", {.rank_memory_bytes = {20 * kGiB}}, 0, host), ElementsAre(3, 0, 2));
}

TEST(Memory, SharesOnlyWhereAllowed) {
  const Host host = host_with_free({20, 40});
  const Request alone{.rank_memory_bytes = {20 * kGiB}};
  EXPECT_EQ(policy_error([&] { choices("memory", alone, 3, host); }),
            "--rank-memory: expected room for 3 ranks on host n0, got too little memory: local "
            "rank 2 needs "
            "20.0 GiB "
            "and no GPU has that free; start fewer ranks there");
  Request shared = alone;
  shared.surplus = Surplus::share;
  EXPECT_THAT(choices("memory", shared, 2, host), ElementsAre(0, 1)) << "no sharing without need";
  EXPECT_THAT(choices("memory", shared, 3, host), ElementsAre(0, 1, 1));
  EXPECT_THAT(policy_error([&] { choices("memory", shared, 4, host); }),
              HasSubstr("local rank 3 needs 20.0 GiB"));
  // Evenly it does not go: 10, 10 and 10 beside each other leave no 30.
  EXPECT_THAT(choices("memory",
                      {.rank_memory_bytes = {30 * kGiB, 10 * kGiB}, .surplus = Surplus::share},
                      4,
                      host_with_free({20, 40})),
              ElementsAre(1, 0, 0, 1));
}

TEST(Memory, WhatIsNotKnownIsSaid) {
  const auto error = [](const Request& request) -> std::string {
    try {
      muster::plan({.source = "test", .hosts = {gpu_host(0, 1)}}, request);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error({.rank_memory_bytes = {20 * kGiB}}), HasSubstr("free are GPU 0 not known"));
  EXPECT_THAT(error({.policy = "sequential", .rank_memory_bytes = {20 * kGiB}}),
              AllOf(HasSubstr("got not known on GPU 0"), HasSubstr("leave --rank-memory out")));
  EXPECT_THAT(error({.gpus = "mem<80GiB"}),
              HasSubstr("host n0 has GPU 0; memory not known of GPU 0"));
}

TEST(Memory, NeedsMustBeGiven) {
  EXPECT_THAT(policy_error([] { choices("memory", {}); }), HasSubstr("give --rank-memory"));
}

// Two NUMA nodes; on the first two switches.
Host numa_host() {
  Host host = gpu_host(0, 6);
  for (size_t i = 0; i < 6; ++i) {
    host.gpus[i].numa_node = i < 4 ? 0 : 1;
    host.gpus[i].memory_total_bytes = host.gpus[i].memory_free_bytes = 80 * kGiB;
  }
  host.gpu_links.assign(6, std::vector<Link>(6, {LinkKind::sys, 0}));
  for (const size_t i : {size_t{0}, size_t{2}}) {
    host.gpu_links[i][i + 1] = host.gpu_links[i + 1][i] = {LinkKind::pix, 0};
  }
  return host;
}

TEST(Spread, OverNodesThenSwitchesLeastLoadedFirst) {
  Host host = numa_host();
  EXPECT_THAT(choices("spread", {}, 0, host), ElementsAre(0, 4, 2, 5, 1, 3));
  host.gpus[0].processes = {{.pid = 1}};
  host.gpus[4].utilization_percent = 50;
  EXPECT_THAT(choices("spread", {}, 4, host), ElementsAre(1, 5, 2, 4));
}

TEST(Pack, FewestNodesMostUsedFirst) {
  Host host = numa_host();
  EXPECT_THAT(choices("pack", {}, 2, host), ElementsAre(4, 5)) << "the node that it just fits on";
  EXPECT_THAT(choices("pack", {}, 3, host), ElementsAre(0, 1, 2));
  EXPECT_THAT(choices("pack", {}, 5, host), ElementsAre(0, 1, 2, 3, 4));
  host.gpus[3].processes = {{.pid = 1}};
  host.gpus[1].memory_free_bytes = 60 * kGiB;
  EXPECT_THAT(choices("pack", {}, 3, host), ElementsAre(3, 1, 0));
}

TEST(Numa, NeighboursShareANode) {
  Host host = gpu_host(0, 6);
  for (size_t i = 0; i < 6; ++i)
    host.gpus[i].numa_node = static_cast<int>(i % 2);
  EXPECT_THAT(choices("numa", {}, 0, host), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(choices("numa", {}, 2, host), ElementsAre(0, 2));
  host.gpus[3].numa_node.reset();
  EXPECT_THAT(policy_error([&] { choices("numa", {}, 0, host); }),
              HasSubstr("expected to know each GPU's NUMA node, got none for GPU 3 of host n0"));
}

TEST(Numa, WhereNoNodeIsNamedThereIsOne) {
  Host host = gpu_host(0, 3);
  EXPECT_THAT(choices("numa", {}, 0, host), ElementsAre(0, 1, 2))
      << "nothing says that there are several";
  for (int core = 0; core < 4; ++core)
    host.cores.push_back({.cpus = {core}});
  EXPECT_THAT(choices("numa", {}, 0, host), ElementsAre(0, 1, 2)) << "all cores are on one";
  host.cores[3].numa_node = 1;
  EXPECT_THAT(policy_error([&] { choices("numa", {}, 0, host); }), HasSubstr("got none for GPU 0"));
}

TEST(SpreadAndPack, CountsOfOneAreSingular) {
  EXPECT_EQ(load_text({.num_processes = 1}), "1 process of others");
  EXPECT_EQ(load_text({.num_processes = 2}), "2 processes of others");
}

TEST(SpreadAndPack, ReasonsTellAllThatDecides) {
  EXPECT_EQ(load_text({.utilization_percent = 35, .used_memory_bytes = 3 * kGiB}),
            "0 processes of others, 35% busy, 3.0 GiB used");
  const Host host = host_with_free({50, 78, 80});
  for (const char* policy : {"spread", "pack"}) {
    const Plan plan =
        muster::plan({.source = "test", .hosts = {host}}, {.nproc_per_node = 3, .policy = policy});
    const auto first_used = std::ranges::find_if(
        plan.ranks, [](const RankPlan& rank) { return rank.device.index.value == 0; });
    EXPECT_EQ(first_used->reason,
              cat(policy, ": NUMA node not known, 0 processes of others, 30.0 GiB used"));
  }
}

TEST(Spread, ARanksGpusAreNearEachOther) {
  Host host = gpu_host(0, 8);
  for (size_t i = 0; i < 8; ++i)
    host.gpus[i].numa_node = static_cast<int>(i / 4);
  const Plan plan =
      muster::plan({.source = "test", .hosts = {host}}, {.gpus_per_rank = 2, .policy = "spread"});
  ASSERT_EQ(plan.ranks.size(), 4U);
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.device.index.value / 4, rank.more_devices[0].index.value / 4) << rank.rank;
    EXPECT_EQ(rank.device.index.value / 4, rank.rank % 2) << "ranks are on other nodes in turn";
  }
}

TEST(SpreadAndPack, WithoutNumaNodesTheyGoByLoad) {
  Host host = gpu_host(0, 3);
  host.gpus[0].processes = {{.pid = 1}};
  EXPECT_THAT(choices("spread", {}, 0, host), ElementsAre(1, 2, 0));
  EXPECT_THAT(choices("pack", {}, 2, host), ElementsAre(0, 1));
}

}  // namespace
}  // namespace muster
