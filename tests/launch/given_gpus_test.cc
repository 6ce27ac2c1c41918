#include "muster/launch/given_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace muster {
namespace {

class GivenGpusTest : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void clear() {
    for (const char* const name :
         {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "NVIDIA_VISIBLE_DEVICES"})
      ::unsetenv(name);
  }

  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }

  // What is taken of a host with this many GPUs; "all" where nothing narrows it.
  static std::string taken_of(int num_gpus) {
    Host host;
    for (int index = 0; index < num_gpus; ++index) {
      Gpu gpu;
      gpu.index.value = index;
      gpu.uuid.value = "GPU-" + std::to_string(index) + "f";
      host.gpus.push_back(gpu);
    }
    const auto given = given_gpus(host);
    return given ? given->variable + "=" + given->mask : "all";
  }
};

TEST_F(GivenGpusTest, WithoutASchedulerThereAreAll) {
  EXPECT_EQ(taken_of(2), "all");
}

TEST_F(GivenGpusTest, AStepOfSlurmKeepsToItsOwnWhereTheOthersAreNotHidden) {
  set("SLURM_STEP_GPUS", "1,3");
  EXPECT_EQ(taken_of(4), "SLURM_STEP_GPUS=1,3");
  set("SLURM_STEP_GPUS", "0,1");
  EXPECT_EQ(taken_of(4), "SLURM_STEP_GPUS=0,1");
}

TEST_F(GivenGpusTest, WhereTheOthersAreHiddenTheNumbersAreOthers) {
  set("SLURM_STEP_GPUS", "2,3");
  EXPECT_EQ(taken_of(2), "all");
  set("SLURM_STEP_GPUS", "0,1");
  EXPECT_EQ(taken_of(2), "all");
}

TEST_F(GivenGpusTest, APodKeepsToTheGpusThatTheDevicePluginNames) {
  set("NVIDIA_VISIBLE_DEVICES", "GPU-2f,GPU-0f");
  EXPECT_EQ(taken_of(4), "NVIDIA_VISIBLE_DEVICES=GPU-2f,GPU-0f");
  EXPECT_EQ(taken_of(2), "all") << "GPU-2f is none of these";
  for (const char* const text : {"all", "void", "none", "", "0", "0,1", "nvidia.com/gpu=0"}) {
    set("NVIDIA_VISIBLE_DEVICES", text);
    EXPECT_EQ(taken_of(4), "all") << text << " says nothing of what this process sees";
  }
}

TEST_F(GivenGpusTest, WhoSetsCudasVariableHasSaidIt) {
  set("SLURM_STEP_GPUS", "1");
  for (const char* const text : {"0,1", ""}) {
    set("CUDA_VISIBLE_DEVICES", text);
    EXPECT_EQ(taken_of(4), "all") << text;
  }
}

TEST_F(GivenGpusTest, InstancesOfMig) {
  Host host;
  Gpu gpu;
  gpu.index.value = 0;
  gpu.uuid.value = "GPU-0f";
  gpu.mig_enabled = true;
  gpu.mig.resize(2);
  gpu.mig[0].uuid.value = "MIG-a";
  gpu.mig[1].uuid.value = "MIG-b";
  host.gpus.push_back(gpu);
  set("NVIDIA_VISIBLE_DEVICES", "MIG-b");
  ASSERT_TRUE(given_gpus(host));
  EXPECT_EQ(given_gpus(host)->mask, "MIG-b");
  set("NVIDIA_VISIBLE_DEVICES", "MIG-a,MIG-b");
  EXPECT_FALSE(given_gpus(host));
}

}  // namespace
}  // namespace muster
