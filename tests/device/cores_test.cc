#include "muster/device/cores.h"

#include <gtest/gtest.h>

#include "tests/device/scratch.h"

namespace muster {
namespace {

int cores_with(const ScratchFolder& folder, const std::string& membership) {
  folder.write("proc/self/cgroup", membership);
  return usable_cores(folder.path());
}

int all_cores() {
  return usable_cores("/nowhere");
}

// Every quota below one core, so that the tests hold on a machine of one core too.
TEST(Cores, AffinityMaskCounts) {
  const int before = all_cores();
  const OnOneCpu one;
  EXPECT_EQ(before, one.num_before());
  EXPECT_EQ(all_cores(), 1);
}

TEST(Cores, QuotaOfVersion2RoundsUp) {
  const ScratchFolder folder;
  folder.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores_with(folder, "0::/job\n"), 1);
  folder.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(cores_with(folder, "0::/job\n"), std::min(2, all_cores()));
}

TEST(Cores, ParentsLimitBinds) {
  const ScratchFolder folder;
  folder.write("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  folder.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cores_with(folder, "0::/a/b\n"), 1);
}

TEST(Cores, RootOfAContainersHierarchy) {
  const ScratchFolder folder;
  folder.write("sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(cores_with(folder, "0::/\n"), 1);
}

TEST(Cores, QuotaOfVersion1) {
  const ScratchFolder folder;
  folder.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "100000\n");
  folder.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores_with(folder, "3:cpu,cpuacct:/job\n1:name=systemd:/\n"), 1);
}

TEST(Cores, NoLimitAndDamagedFiles) {
  const ScratchFolder folder;
  folder.write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cores_with(folder, "0::/job\n"), all_cores());
  folder.write("sys/fs/cgroup/job/cpu.max", "x y\n");
  EXPECT_EQ(cores_with(folder, "0::/job\nnonsense\n::\n0:cpu\n"), all_cores());
  folder.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  folder.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores_with(folder, "2:cpu:/\n"), all_cores());
}

}  // namespace
}  // namespace muster
