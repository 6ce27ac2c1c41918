#include "muster/tasks/hosts/seen_host.h"

#include <gtest/gtest.h>

#include "muster/tasks/schedule/device_pool.h"
#include "tests/tasks/schedule/machines.h"

namespace muster::tasks_test {
namespace {

std::vector<int> indices_of(const Host& host) {
  const DevicePool pool({.source = "test", .hosts = {host}});
  std::vector<int> indices;
  for (const PoolGpu& gpu : pool.hosts()[0].gpus)
    indices.push_back(gpu.index.value);
  return indices;
}

TEST(SeenHost, WhatTheEnvironmentHidesIsNotUsed) {
  const Host host = host_with(4);
  EXPECT_EQ(indices_of(seen_host(host, {})), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(indices_of(seen_host(host, {.cuda = "1,3"})), (std::vector<int>{1, 3}));
  EXPECT_EQ(indices_of(seen_host(host, {.cuda = ""})), std::vector<int>());
  EXPECT_EQ(seen_host(host, {}), host);
}

TEST(SeenHost, WhatIsSickSaysWhyStill) {
  Host host = host_with(2);
  host.gpus[0].health = "GPU is lost";
  EXPECT_EQ(seen_host(host, {.cuda = ""}).gpus[0].health, "GPU is lost");
  EXPECT_NE(seen_host(host, {.cuda = ""}).gpus[1].health, kHealthy);
}

TEST(SeenHost, OfAGpuThatIsSplitTheInstancesThatAreShown) {
  Host host = host_with(1);
  host.gpus[0].mig_enabled = true;
  host.gpus[0].mig = {{.uuid = {"MIG-1"}, .profile = "1g"}, {.uuid = {"MIG-2"}, .profile = "1g"}};
  const Host seen = seen_host(host, {.cuda = "MIG-2"});
  ASSERT_EQ(seen.gpus[0].mig.size(), 1U);
  EXPECT_EQ(seen.gpus[0].mig[0].uuid.value, "MIG-2");
}

}  // namespace
}  // namespace muster::tasks_test
