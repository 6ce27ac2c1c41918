#include "muster/supervise/oom_watch.h"

#include <gtest/gtest.h>

#include "tests/device/scratch.h"

namespace muster {
namespace {

TEST(OomWatch, VersionTwo) {
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

TEST(OomWatch, VersionOneGoesFirst) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  root.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(count_oom_kills(root.path()), 7);
  EXPECT_FALSE(group_memory_limit(root.path()));
}

TEST(OomWatch, InAContainerTheMountIsTheGroup) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "0::/docker/4711\n");
  root.write("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  EXPECT_EQ(count_oom_kills(root.path()), 2);
}

TEST(OomWatch, DamagedFilesSayNothing) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "::\nx\n0::\n");
  root.write("sys/fs/cgroup/memory.events", "oom_kill many\n");
  EXPECT_FALSE(count_oom_kills(root.path()));
}

}  // namespace
}  // namespace muster
