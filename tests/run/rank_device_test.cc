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
    entry.device = {.kind = DeviceAssignment::Kind::gpu,
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
  const RankDevice found = device_of_rank(planned(1, false), Surplus::error).value();
  EXPECT_EQ(found.device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(found.assignment.device.uuid.value, "GPU-a");
  EXPECT_EQ(found.assignment.reason, "as asked");
}

TEST(RankDevice, ASimulatedMachinesRanksComputeOnTheCpu) {
  const RankDevice found = device_of_rank(planned(1, true), Surplus::error).value();
  EXPECT_EQ(found.device, c10::Device(c10::kCPU));
  EXPECT_EQ(found.assignment.device.uuid.value, "GPU-a");
}

TEST(RankDevice, APlanWithoutThisRankIsAnError) {
  auto env = planned(0, false);
  env.rank = 2;
  EXPECT_THROW(device_of_rank(env, Surplus::error), Error);
  env.plan = "/no/such/plan.json";
  EXPECT_THROW(device_of_rank(env, Surplus::error), Error);
}

Inventory two_gpus() {
  Host host;
  host.name = "a";
  for (int i = 0; i < 2; ++i) {
    Gpu gpu;
    gpu.index.value = i;
    gpu.uuid.value = i == 0 ? "GPU-a" : "GPU-b";
    gpu.model = "M";
    host.gpus.push_back(gpu);
  }
  return {.source = "test", .hosts = {host}};
}

RankEnv started(int local_rank) {
  RankEnv env;
  env.rank = env.local_rank = local_rank;
  env.world_size = env.local_world_size = 3;
  env.source = "srun";
  return env;
}

TEST(RankDevice, TheVisibleGpuOfTheLocalRank) {
  const auto device =
      [](int local_rank, const VisibilityMasks& masks, Surplus surplus = Surplus::error) {
        return device_by_local_rank(started(local_rank), two_gpus(), masks, surplus).value();
      };
  EXPECT_EQ(device(1, {}).device, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(device(1, {.cuda = "1,0"}).assignment.device.uuid.value, "GPU-a");
  EXPECT_EQ(device(2, {.cuda = "1"}).device, c10::Device(c10::kCUDA, 0)) << "a GPU of its own";
  EXPECT_EQ(device(2, {}, Surplus::share).device, c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(device(2, {}, Surplus::cpu).device, c10::Device(c10::kCPU));
  EXPECT_EQ(device(0, {.cuda = ""}).device, c10::Device(c10::kCPU));
}

TEST(RankDevice, AMaskOfAllRanksIsNotTheRanksOwn) {
  const auto shared = [](int local_rank, Surplus surplus) {
    RankEnv env = started(local_rank);
    env.source = "torchrun";
    return device_by_local_rank(env, two_gpus(), {.cuda = "1"}, surplus);
  };
  EXPECT_EQ(shared(1, Surplus::cpu)->device, c10::Device(c10::kCPU));
  EXPECT_FALSE(shared(1, Surplus::drop));
  EXPECT_EQ(shared(0, Surplus::drop)->local_world_size, 1);
  Inventory sick = two_gpus();
  sick.hosts[0].gpus[1].health = "GPU is lost";
  EXPECT_THROW(device_by_local_rank(started(1), sick, {.cuda = "0,1"}, Surplus::error), Error)
      << "a mask of two, of which one is left";
  sick.hosts[0].gpus[0].health = "GPU is lost";
  EXPECT_THROW(device_by_local_rank(started(0), sick, {}, Surplus::cpu), Error) << "to be repaired";
}

TEST(RankDevice, OneVendorsGpusAlone) {
  Inventory mixed = two_gpus();
  mixed.hosts[0].gpus[1].vendor = Vendor::amd;
  EXPECT_THROW(device_by_local_rank(started(1), mixed, {}, Surplus::error), Error);
}

TEST(RankDevice, OfMigInstancesTheFirst) {
  Inventory split = two_gpus();
  split.hosts[0].gpus.pop_back();
  split.hosts[0].gpus[0].mig_enabled = true;
  split.hosts[0].gpus[0].mig = {{.uuid = {"MIG-a"}, .profile = "1g"},
                                {.uuid = {"MIG-b"}, .profile = "1g"}};
  EXPECT_EQ(
      device_by_local_rank(started(0), split, {}, Surplus::error)->assignment.device.uuid.value,
      "MIG-a");
  EXPECT_THROW(device_by_local_rank(started(1), split, {}, Surplus::error), Error);
  EXPECT_EQ(device_by_local_rank(started(1), split, {.cuda = "MIG-b"}, Surplus::error)
                ->assignment.device.uuid.value,
            "MIG-b");
}

TEST(RankDevice, OneTooManyIsAnErrorOrLeftOut) {
  EXPECT_THROW(device_by_local_rank(started(2), two_gpus(), {}, Surplus::error), Error);
  EXPECT_FALSE(device_by_local_rank(started(2), two_gpus(), {}, Surplus::drop));
  EXPECT_FALSE(device_by_local_rank(started(0), two_gpus(), {.cuda = ""}, Surplus::drop));
}

}  // namespace
}  // namespace muster::testing
