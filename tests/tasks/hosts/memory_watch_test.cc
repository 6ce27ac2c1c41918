// What is told of GPUs' memory, by a stand-in for the driver's library.
#include "muster/tasks/hosts/memory_watch.h"

#include <gmock/gmock.h>

#include <map>

#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "tests/device/scratch.h"

namespace muster::tasks_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A GPU of 8 GiB with `free_gib` free, and one with two MIG instances of 4 GiB.
std::string machine_with(int free_gib, int free_beside_instances_gib) {
  const auto gpu = [](int number, int free) {
    return cat("|uuid=GPU-",
               number,
               "0000000-0000-4000-8000-000000000000,name=Test GPU,cc=9.0,pci=00000000:0",
               number,
               ":00.0,total=",
               8192 * kMiB,
               ",free=",
               static_cast<uint64_t>(free) * 1024 * kMiB);
  };
  return cat("version=550.54",
             gpu(1, free_gib),
             gpu(2, free_beside_instances_gib),
             ",mig=1,migs=MIG-a:Test GPU MIG 3g.4gb:4096:3:3;MIG-b:Test GPU MIG 3g.4gb:4096:3:3");
}

class MemoryWatchTest : public testing::Test {
 protected:
  MemoryWatchTest() { folder_.write("machine", machine_with(8, 8)); }

  std::map<int, uint64_t> told_with(const std::set<int>& taken, const std::string& machine) {
    const DevicePool pool(probe_this_machine());
    EXPECT_EQ(pool.num_gpus(), 3);
    folder_.write("machine", machine);
    std::map<int, uint64_t> told;
    MemoryWatch watch(pool, 0, [&](int gpu, uint64_t bytes) { told[gpu] = bytes / kMiB; });
    watch.look(taken);
    return told;
  }

  const ScratchFolder folder_;
  const ScopedEnv library_{"MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY};
  const ScopedEnv machine_{"FAKE_NVML", ("@" + folder_.path() + "/machine").c_str()};
  const ScopedEnv visible_{"CUDA_VISIBLE_DEVICES", nullptr};
};

TEST_F(MemoryWatchTest, WhatOthersUseIsToldOfEveryGpuWithoutATask) {
  EXPECT_THAT(told_with({}, machine_with(6, 7)),
              ElementsAre(Pair(0, 2048), Pair(1, 1024), Pair(2, 1024)));
}

TEST_F(MemoryWatchTest, WhatATaskUsesIsNotOthers) {
  EXPECT_THAT(told_with({0}, machine_with(6, 7)), ElementsAre(Pair(1, 1024), Pair(2, 1024)));
}

// The driver tells what is used of the whole GPU.
TEST_F(MemoryWatchTest, ATaskOnOneInstanceIsNotInTheWayOfAnother) {
  EXPECT_THAT(told_with({1}, machine_with(6, 4)), ElementsAre(Pair(0, 2048)));
}

TEST_F(MemoryWatchTest, WhereEveryGpuHasATaskNobodyIsAsked) {
  const DevicePool pool(probe_this_machine());
  bool told = false;
  MemoryWatch watch(pool, 0, [&](int /*gpu*/, uint64_t /*bytes*/) { told = true; });
  watch.look({0, 2});
  EXPECT_FALSE(told);
  watch.look({2});
  EXPECT_TRUE(told) << "the first did not count as a look";
}

}  // namespace
}  // namespace muster::tasks_test
