#include "muster/tasks/schedule/check_needs.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Host n0: two A100s of 40 and 80 GiB, 8 cores. Host n1: one H100 of 80 GiB, 16 cores.
Inventory two_hosts() {
  Inventory inventory = machine({2, 1});
  inventory.hosts[0].gpus[0].memory_total_bytes = 40 * kGiB;
  inventory.hosts[0].gpus[1].memory_total_bytes = 80 * kGiB;
  for (Gpu& gpu : inventory.hosts[0].gpus)
    gpu.model = "NVIDIA A100";
  inventory.hosts[1].gpus[0].memory_total_bytes = 80 * kGiB;
  inventory.hosts[1].gpus[0].model = "NVIDIA H100";
  inventory.hosts[1].num_cores = 16;
  return inventory;
}

Task needing(const std::vector<TaskNeed>& needs, const std::string& on = "") {
  return {.name = "t", .argv = {"x"}, .needs = needs, .on = on, .at = {2, 8}};
}

std::string needs_error(const std::vector<Task>& tasks, const Inventory& inventory) {
  try {
    check_needs(tasks, {.inventory = inventory, .source = "t.toml"});
  } catch (const Error& error) {
    return error.message();
  }
  return "possible";
}

std::string needs_error(const std::vector<TaskNeed>& needs, const std::string& on = "") {
  return needs_error({needing(needs, on)}, two_hosts());
}

TEST(CheckNeeds, WhatAHostHasIsPossible) {
  EXPECT_EQ(needs_error({{.gpus = 2, .memory_bytes = 40 * kGiB, .model = "a100", .cpus = 8}}),
            "possible");
  EXPECT_EQ(needs_error({{.gpus = 1, .memory_bytes = 80 * kGiB, .model = "H100", .cpus = 16}}),
            "possible");
  EXPECT_EQ(needs_error({{.gpus = 0.5}}), "possible");
  EXPECT_EQ(needs_error({{.cpus = 16}}), "possible");
}

TEST(CheckNeeds, SharesOfAGpuAreToldOnce) {
  std::vector<Task> sweep;
  for (const double share : {0.3, 0.3333, 0.3334, 0.5, 1.0})
    sweep.push_back(needing({{.gpus = share, .model = "B200"}}));
  const std::string error = needs_error(sweep, two_hosts());
  EXPECT_THAT(error, StartsWith("t.toml:2:8: task t and 4 more: expected"));
  EXPECT_THAT(error, Not(HasSubstr("\n")));
}

// An index or a UUID of such a GPU stands for all of its instances.
TEST(CheckNeeds, AGpuThatIsSplitGivesAllOfItsInstances) {
  Inventory inventory = machine({2});
  Gpu& gpu = inventory.hosts[0].gpus[0];
  gpu.mig_enabled = true;
  gpu.mig = {{{"MIG-a"}, "3g.40gb", 40 * kGiB}, {{"MIG-b"}, "3g.40gb", 40 * kGiB}};
  for (const std::string& on : {std::string("0"), gpu.uuid.value, std::string("0,free:1")})
    EXPECT_EQ(needs_error({needing({{.gpus = 2}}, on)}, inventory), "possible") << on;
  EXPECT_THAT(needs_error({needing({{.gpus = 3}}, "0")}, inventory),
              HasSubstr("3 GPUs: the most that a host has is 2"));
  EXPECT_NO_THROW(check_needs({needing({{.gpus = 2}})}, {.inventory = inventory, .gpus = "0"}));
}

TEST(CheckNeeds, TheNearestThereIs) {
  EXPECT_EQ(
      needs_error({{.gpus = 3}}),
      "t.toml:2:8: task t: expected needs that a host can meet (a host of test has at most 2 GPUs "
      "and "
      "16 CPUs), got 3 GPUs: the most that a host has is 2 (host n0); ask for less, or add an "
      "alternative to "
      "needs");
  EXPECT_THAT(needs_error({{.gpus = 2, .model = "H100"}}),
              HasSubstr("2 GPUs of model 'H100': the most that a host has is 1 (host n1)"));
  EXPECT_THAT(needs_error({{.gpus = 1, .model = "V100"}}),
              HasSubstr("1 GPU of model 'V100': there are only 'NVIDIA A100', 'NVIDIA H100'"));
  EXPECT_THAT(needs_error({{.gpus = 1, .memory_bytes = 90 * kGiB}}),
              HasSubstr("1 GPU with 90.0 GiB: the most that a GPU has is 80.0 GiB (host n0)"));
  EXPECT_THAT(
      needs_error({{.gpus = 2, .memory_bytes = 60 * kGiB}}),
      HasSubstr(
          "2 GPUs with 60.0 GiB: the most that 2 GPUs of a host have each is 40.0 GiB (host n0)"));
  EXPECT_THAT(needs_error({{.cpus = 17}}),
              HasSubstr("17 CPUs: the most that a host has is 16 (host n1)"));
  EXPECT_THAT(needs_error({{.gpus = 2, .cpus = 16}}),
              HasSubstr("2 GPUs and 16 CPUs: no host has both"));
}

TEST(CheckNeeds, MemoryThatIsNotKnownIsNotNothing) {
  EXPECT_THAT(
      needs_error({needing({{.gpus = 1, .memory_bytes = kGiB}})}, machine({1})),
      HasSubstr("got 1 GPU with 1.0 GiB: how much memory GPUs have is not known (host n0); "));
}

TEST(CheckNeeds, OneAlternativeIsEnough) {
  EXPECT_EQ(needs_error({{.gpus = 9}, {.cpus = 1}}), "possible");
  const std::string error = needs_error({{.gpus = 9}, {.cpus = 99}});
  EXPECT_THAT(error, HasSubstr("\n  9 GPUs: the most"));
  EXPECT_THAT(error, HasSubstr("\n  99 CPUs: the most"));
}

TEST(CheckNeeds, WhatOnSelects) {
  EXPECT_EQ(needs_error({{.gpus = 2}}, "n0:0,1"), "possible");
  EXPECT_EQ(needs_error({{.gpus = 1}}, "1"), "possible");  // of host n0 alone
  EXPECT_THAT(needs_error({{.gpus = 2}}, "0"),
              HasSubstr("2 GPUs: the most that a host has is 1 (host n0) of on = '0'"));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "7"),
              HasSubstr("task t: on = '7': expected the index of a GPU"));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "n7:0"),
              HasSubstr("task t: on = 'n7:0': expected a host of the job (n0, n1), got n7"));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "model=V100"), HasSubstr("1 GPU: host n0 has GPUs 0, 1"));
  EXPECT_EQ(needs_error({{.gpus = 1}, {.cpus = 1}}, "model=V100"), "possible");
  // What names nothing is a slip, whatever else would do.
  EXPECT_THAT(needs_error({{.gpus = 1}, {.cpus = 1}}, "7"),
              HasSubstr("on = '7': expected the index"));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "n0:0;n1:1"), HasSubstr("expected the index of a GPU"));
}

TEST(CheckNeeds, WhatChangesCouldComeToBe) {
  Inventory busy = two_hosts();
  for (Host& host : busy.hosts) {
    for (Gpu& gpu : host.gpus)
      gpu.processes = {{.pid = 1, .used_memory_bytes = kGiB}};
  }
  EXPECT_EQ(needs_error({needing({{.gpus = 2}}, "idle")}, busy), "possible");
  EXPECT_EQ(needs_error({needing({{.gpus = 2}}, "free:2,free>=30GiB")}, busy), "possible");
  EXPECT_THAT(needs_error({needing({{.gpus = 2}}, "free:1")}, busy),
              HasSubstr("the most that a host has is 1"));
  EXPECT_THAT(needs_error({needing({{.gpus = 2}}, "idle,model=H100")}, busy),
              HasSubstr("is 1 (host n1)"));
}

// The fastest of those with free memory is another GPU at another moment.
TEST(CheckNeeds, TheFastestOfWhatChangesChangesToo) {
  Inventory inventory = two_hosts();
  inventory.hosts[0].gpus[1].model = "NVIDIA H100";
  const Scores scores = {{"NVIDIA H100", 2}, {"NVIDIA A100", 1}};
  const auto check = [&](const std::string& on, const std::optional<Selection>& gpus) {
    check_needs({needing({{.gpus = 1, .model = "A100"}}, on)},
                {.inventory = inventory, .scores = scores, .gpus = gpus});
  };
  EXPECT_NO_THROW(check("fastest:1,free>=20GiB", {}));
  EXPECT_NO_THROW(check("", Selection("fastest:1,free>=20GiB")));
  EXPECT_NO_THROW(check("fastest:1", Selection("free>=20GiB")));
  EXPECT_THROW(check("fastest:1,mem>=20GiB", {}), Error);
  EXPECT_THROW(check("fastest:1,free>=60GiB", {}), Error) << "no A100 has that much";
  EXPECT_THROW(check("free:3", {}), Error) << "no host has three";
}

TEST(CheckNeeds, NoGpuAtAll) {
  EXPECT_THAT(needs_error({needing({{.gpus = 1}})}, machine({0})),
              HasSubstr("1 GPU: host n0 has no usable GPU: no driver"));
  EXPECT_EQ(needs_error({needing({{.gpus = 1}, {.cpus = 1}})}, machine({0})), "possible");
}

TEST(CheckNeeds, CoresOfAFileThatTellsNoneAreNotCounted) {
  Inventory file = machine({1});
  file.simulated = true;
  EXPECT_EQ(needs_error({needing({{.gpus = 1, .cpus = 500}})}, file), "possible");
}

TEST(CheckNeeds, WhatThereIsIsSaid) {
  EXPECT_THAT(
      needs_error({needing({{.gpus = 3}})}, machine({1})),
      HasSubstr(
          "task t: expected needs that a host can meet (test has 1 GPU and 8 CPUs), got 3 GPUs: "));
  Inventory unknown = machine({0});
  unknown.hosts[0].num_cores = 0;
  EXPECT_THAT(needs_error({needing({{.gpus = 3}})}, unknown), HasSubstr("(test), got 3 GPUs: "));
  try {
    check_needs({{.name = "x=1", .argv = {"x"}, .needs = {{.gpus = 3}}}}, {.inventory = unknown});
    FAIL() << "possible";
  } catch (const Error& error) {
    EXPECT_TRUE(error.message().starts_with("task x=1: expected ")) << error.message();
  }
}

TEST(CheckNeeds, TasksThatAskForTheSameAreToldOnce) {
  std::vector<Task> tasks(100'000, needing({{.gpus = 3}}));
  tasks.push_back(needing({{.gpus = 1, .model = "V100"}}));
  const std::string error = needs_error(tasks, two_hosts());
  EXPECT_THAT(error, HasSubstr("t.toml:2:8: task t and 99999 more: expected"));
  EXPECT_THAT(error, HasSubstr("\nt.toml:2:8: task t: expected needs"));
  std::vector<Task> many;
  for (int i = 0; i < 20; ++i)
    many.push_back(needing({{.gpus = 100.0 + i}}));
  EXPECT_THAT(needs_error(many, two_hosts()), Not(HasSubstr("110 GPUs")));
}

// The lines are those of a spec: name at 2:8, then needs, on and ranks.
std::string placed_error(const NeedPlaces& places,
                         const std::vector<TaskNeed>& needs,
                         const std::string& on,
                         const std::string& gpus = "",
                         int cpus = 0) {
  Task task = needing(needs, on);
  task.places = places;
  const Inventory inventory = two_hosts();
  try {
    check_needs({task},
                {.inventory = inventory,
                 .source = "t.toml",
                 .text = "[[task]]\nname = 't'\nneeds = …\non = '0,7'\nranks = 2\n",
                 .gpus = gpus.empty() ? std::nullopt : std::optional(Selection(gpus)),
                 .cpus = cpus});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "possible";
}

TEST(CheckNeeds, TheKeyThatIsToBlameIsPointedAt) {
  const NeedPlaces places = {.needs = {3, 9}, .on = {4, 6}, .ranks = {5, 9}};
  const std::vector<TaskNeed> by_default = {{.gpus = 1}, {.cpus = 1, .without_gpus = true}};
  EXPECT_THAT(placed_error(places, {{.gpus = 3}}, ""),
              AllOf(StartsWith("t.toml:3:9: task t: "), EndsWith("\n  needs = …\n          ^")));
  EXPECT_THAT(placed_error({.ranks = {5, 9}}, {{.gpus = 3}}, ""),
              StartsWith("t.toml:5:9: task t: "));
  EXPECT_THAT(placed_error({.on = {4, 6}}, by_default, "0,7"),
              AllOf(StartsWith("t.toml:4:9: task t: on = '0,7': "),
                    EndsWith("\n  on = '0,7'\n          ^")));
  EXPECT_THAT(placed_error(places, by_default, "model=V100"),
              AllOf(StartsWith("t.toml:4:6: task t: "), HasSubstr("correct on or leave it out")));
  EXPECT_THAT(placed_error(places, {{.gpus = 3}}, "all"), StartsWith("t.toml:3:9: "))
      << "not on's fault";
}

TEST(CheckNeeds, WhatTheRunMayUse) {
  const NeedPlaces places = {.needs = {3, 9}};
  EXPECT_EQ(placed_error(places, {{.gpus = 2, .cpus = 4}}, "", "n0:0,1", 4), "possible");
  EXPECT_THAT(
      placed_error(places, {{.gpus = 2}}, "", "n0:0;n1:0"),
      HasSubstr(
          "is 1 (host n0) of --gpus n0:0;n1:0; ask for less, or give more than --gpus n0:0;n1:0"));
  EXPECT_THAT(placed_error(places, {{.gpus = 2}}, "", "n0:free:1"),
              HasSubstr("is 1 (host n0) of --gpus"));
  EXPECT_THAT(placed_error(places, {{.gpus = 1}}, "", "model=V100"),
              HasSubstr("--gpus model=V100 leaves none"));
  EXPECT_THAT(
      placed_error(places, {{.cpus = 2}}, "", "", 1),
      HasSubstr(
          "2 CPUs: the most that a host has is 1 (host n0) of --cpus 1; ask for less, or give"));
  EXPECT_EQ(placed_error(places, {{.cpus = 99}}, "", "", 99), "possible");
  EXPECT_EQ(
      placed_error(places, {{.gpus = 1}, {.cpus = 1, .without_gpus = true}}, "", "model=V100"),
      "possible");
  EXPECT_THAT(placed_error(places, {{.gpus = 9}, {.cpus = 1, .without_gpus = true}}, ""),
              HasSubstr("9 GPUs"));
  EXPECT_THAT(placed_error(places, {{.gpus = 1}}, "", "7"),
              StartsWith("--gpus 7: expected the index"));
}

TEST(CheckNeeds, ASweepsOwnFlagsAreNamed) {
  const Inventory inventory = two_hosts();
  const std::vector<Task> tasks = {{.name = "x=1", .argv = {"x"}, .needs = {{.gpus = 3}}}};
  try {
    check_needs(tasks, {.inventory = inventory, .need_flags = "--need-gpus 3"});
    FAIL() << "possible";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                AllOf(StartsWith("--need-gpus 3: task x=1: expected needs"),
                      EndsWith("; ask for less with --need-gpus, --need-memory or --need-cpus")));
  }
}

}  // namespace
}  // namespace muster
