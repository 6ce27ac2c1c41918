#include "muster/tasks/check_needs.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/placement/machines.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

// Host n0: two A100s of 40 and 80 GiB, 8 cores. Host n1: one H100 of 80 GiB, 16 cores.
Inventory two_hosts() {
  Inventory inventory = machine({2, 1});
  inventory.hosts[0].gpus[0].memory_total_bytes = 40 * kGiB;
  inventory.hosts[0].gpus[1].memory_total_bytes = 80 * kGiB;
  for (Gpu& gpu : inventory.hosts[0].gpus) gpu.model = "NVIDIA A100";
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
  EXPECT_EQ(needs_error({{.gpus = 2, .memory_bytes = 40 * kGiB, .model = "a100", .cpus = 8}}), "possible");
  EXPECT_EQ(needs_error({{.gpus = 1, .memory_bytes = 80 * kGiB, .model = "H100", .cpus = 16}}), "possible");
  EXPECT_EQ(needs_error({{.gpus = 0.5}}), "possible");
  EXPECT_EQ(needs_error({{.cpus = 16}}), "possible");
}

TEST(CheckNeeds, TheNearestThereIs) {
  EXPECT_EQ(
      needs_error({{.gpus = 3}}),
      "t.toml:2:8: task t: expected needs that a host can meet (test has hosts of at most 2 GPUs and 16 "
      "cores), got 3 GPUs: the most that a host has is 2 (host n0)");
  EXPECT_THAT(needs_error({{.gpus = 2, .model = "H100"}}),
              HasSubstr("2 GPUs of model 'H100': the most that a host has is 1 (host n1)"));
  EXPECT_THAT(needs_error({{.gpus = 1, .model = "V100"}}),
              HasSubstr("1 GPU of model 'V100': there are only 'NVIDIA A100', 'NVIDIA H100'"));
  EXPECT_THAT(needs_error({{.gpus = 1, .memory_bytes = 90 * kGiB}}),
              HasSubstr("1 GPU with 90.0 GiB: the most that a GPU has is 80.0 GiB (host n0)"));
  EXPECT_THAT(
      needs_error({{.gpus = 2, .memory_bytes = 60 * kGiB}}),
      HasSubstr("2 GPUs with 60.0 GiB: the most that 2 GPUs of a host have each is 40.0 GiB (host n0)"));
  EXPECT_THAT(needs_error({{.cpus = 17}}), HasSubstr("17 cores: the most that a host has is 16 (host n1)"));
  EXPECT_THAT(needs_error({{.gpus = 2, .cpus = 16}}), HasSubstr("2 GPUs and 16 cores: no host has both"));
}

TEST(CheckNeeds, OneAlternativeIsEnough) {
  EXPECT_EQ(needs_error({{.gpus = 9}, {.cpus = 1}}), "possible");
  const std::string error = needs_error({{.gpus = 9}, {.cpus = 99}});
  EXPECT_THAT(error, HasSubstr("\n  9 GPUs: the most"));
  EXPECT_THAT(error, HasSubstr("\n  99 cores: the most"));
}

TEST(CheckNeeds, WhatOnSelects) {
  EXPECT_EQ(needs_error({{.gpus = 2}}, "n0:0,1"), "possible");
  EXPECT_EQ(needs_error({{.gpus = 1}}, "1"), "possible");  // of host n0 alone
  EXPECT_THAT(needs_error({{.gpus = 2}}, "0"),
              HasSubstr("2 GPUs: the most that a host has is 1 (host n0) of on = '0'"));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "7"), HasSubstr("1 GPU: on = '7': "));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "n7:0"), HasSubstr("1 GPU: on = 'n7:0': "));
  EXPECT_THAT(needs_error({{.gpus = 1}}, "model=V100"), HasSubstr("1 GPU: host n0 has GPUs 0, 1"));
  EXPECT_EQ(needs_error({{.gpus = 1}, {.cpus = 1}}, "7"), "possible");
}

TEST(CheckNeeds, WhatChangesCouldComeToBe) {
  Inventory busy = two_hosts();
  for (Host& host : busy.hosts) {
    for (Gpu& gpu : host.gpus) gpu.processes = {{.pid = 1, .used_memory_bytes = kGiB}};
  }
  EXPECT_EQ(needs_error({needing({{.gpus = 2}}, "idle")}, busy), "possible");
  EXPECT_EQ(needs_error({needing({{.gpus = 2}}, "free:2,free>=30GiB")}, busy), "possible");
  EXPECT_THAT(needs_error({needing({{.gpus = 2}}, "free:1")}, busy),
              HasSubstr("the most that a host has is 1"));
  EXPECT_THAT(needs_error({needing({{.gpus = 2}}, "idle,model=H100")}, busy), HasSubstr("is 1 (host n1)"));
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
      HasSubstr("task t: expected needs that a host can meet (test has 1 GPU and 8 cores), got 3 GPUs: "));
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
  for (int i = 0; i < 20; ++i) many.push_back(needing({{.gpus = 100.0 + i}}));
  EXPECT_THAT(needs_error(many, two_hosts()), Not(HasSubstr("110 GPUs")));
}

}  // namespace
}  // namespace muster
