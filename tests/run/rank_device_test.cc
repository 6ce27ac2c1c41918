#include "muster/run/rank_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/placement/plan_json.h"

namespace muster::testing {
namespace {

// A plan of two ranks on two GPUs, in a file, and the environment of one of them.
RankEnv planned(int rank, bool simulated) {
  Plan plan;
  plan.policy = "list";
  plan.simulated = simulated;
  for (int i = 0; i < 2; ++i) {
    RankPlan entry;
    entry.rank = entry.local_rank = i;
    entry.host = "h";
    entry.reason = "as asked";
    entry.device = {.kind = DeviceAssignment::Kind::cuda,
                    .uuid = {i == 0 ? "GPU-b" : "GPU-a"},
                    .index = {1 - i},
                    .model = "M",
                    .ordinal = {i}};
    plan.ranks.push_back(entry);
  }
  std::string folder = ::testing::TempDir() + "muster-device-XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  RankEnv env;
  env.rank = env.local_rank = rank;
  env.world_size = 2;
  env.plan = folder + "/plan.json";
  env.simulated = simulated;
  write_file(env.plan, plan_to_json(plan));
  return env;
}

TEST(RankDevice, ThePlansOrdinalIsTheRanksDevice) {
  const RankDevice found = device_of_rank(planned(1, false));
  EXPECT_EQ(found.device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(found.assignment.device.uuid.value, "GPU-a");
  EXPECT_EQ(found.assignment.reason, "as asked");
}

TEST(RankDevice, ASimulatedMachinesRanksComputeOnTheCpu) {
  const RankDevice found = device_of_rank(planned(1, true));
  EXPECT_EQ(found.device, c10::Device(c10::kCPU));
  EXPECT_EQ(found.assignment.device.uuid.value, "GPU-a");
}

TEST(RankDevice, APlanWithoutThisRankIsAnError) {
  auto env = planned(0, false);
  env.rank = 2;
  EXPECT_THROW(device_of_rank(env), Error);
  env.plan = "/no/such/plan.json";
  EXPECT_THROW(device_of_rank(env), Error);
}

}  // namespace
}  // namespace muster::testing
