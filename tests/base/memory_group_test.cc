#include "muster/base/memory_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/device/scratch.h"

namespace muster {
namespace {

TEST(MemoryGroup, VersionTwo) {
  const ScratchFolder root;
  EXPECT_FALSE(count_oom_kills(root.path())) << "no /proc";
  root.write("proc/self/cgroup", "0::/jobs/a\n");
  EXPECT_FALSE(count_oom_kills(root.path())) << "no such file";
  root.write("sys/fs/cgroup/jobs/a/memory.events",
             "low 0\nhigh 1\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n");
  EXPECT_EQ(count_oom_kills(root.path()), 3);
  root.write("sys/fs/cgroup/jobs/a/memory.max", "max\n");
  EXPECT_FALSE(group_memory_limit(root.path()));
  root.write("sys/fs/cgroup/jobs/a/memory.max", "2147483648\n");
  EXPECT_EQ(group_memory_limit(root.path()), int64_t{2} << 30);
}

TEST(MemoryGroup, VersionOneGoesFirst) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/b/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  root.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(count_oom_kills(root.path()), 7);
  EXPECT_FALSE(group_memory_limit(root.path()));
}

TEST(MemoryGroup, InAContainerTheMountIsTheGroup) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "0::/docker/4711\n");
  root.write("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  EXPECT_EQ(count_oom_kills(root.path()), 2);
}

TEST(MemoryGroup, DamagedFilesSayNothing) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "::\nx\n0::\n");
  root.write("sys/fs/cgroup/memory.events", "oom_kill many\n");
  EXPECT_FALSE(count_oom_kills(root.path()));
}

TEST(MemoryGroup, AvailableIsTheLeastOfMachineGroupAndGroupsAround) {
  const ScratchFolder root;
  EXPECT_FALSE(available_memory(root.path())) << "no /proc";
  root.write("proc/meminfo", "MemTotal:  100 kB\nMemAvailable:       80 kB\n");
  EXPECT_EQ(available_memory(root.path()), 80 * 1024);
  root.write("proc/self/cgroup", "0::/jobs/a\n");
  root.write("sys/fs/cgroup/jobs/a/memory.max", "max\n");
  EXPECT_EQ(available_memory(root.path()), 80 * 1024);
  root.write("sys/fs/cgroup/jobs/memory.max", "50000\n");
  root.write("sys/fs/cgroup/jobs/memory.current", "20000\n");
  EXPECT_EQ(available_memory(root.path()), 30000);
  root.write("sys/fs/cgroup/jobs/memory.stat", "anon 7\ninactive_file 5000\n");
  EXPECT_EQ(available_memory(root.path()), 35000);
  root.write("sys/fs/cgroup/jobs/a/memory.max", "3000\n");
  root.write("sys/fs/cgroup/jobs/a/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root.path()), 1000);
}

TEST(MemoryTurn, IsOneProcessesAtATime) {
  const ScratchFolder root;
  EXPECT_FALSE(MemoryTurn(std::chrono::milliseconds(0), root.path()).is_held()) << "no /proc";
  root.write("proc/self/cgroup", "0::/jobs/a\n");
  root.write("sys/fs/cgroup/jobs/a/memory.max", "max\n");
  std::atomic<bool> over{false};
  std::thread second;
  {
    const MemoryTurn first(std::chrono::seconds(0), root.path());
    EXPECT_TRUE(first.is_held());
    root.write("proc/self/cgroup", "0::/jobs\n");  // a group around it has the same turn
    EXPECT_FALSE(MemoryTurn(std::chrono::milliseconds(5), root.path()).is_held());
    second = std::thread([&] {
      const MemoryTurn turn(std::chrono::seconds(60), root.path());
      EXPECT_TRUE(turn.is_held());
      EXPECT_TRUE(over);
    });
    over = true;
  }
  second.join();
}

}  // namespace
}  // namespace muster
