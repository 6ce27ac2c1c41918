#include "muster/device/cpu_topology.h"

#include <gmock/gmock.h>
#include <sched.h>

#include <set>

#include "muster/base/strings.h"
#include "muster/device/cores.h"
#include "muster/device/cpu_list.h"
#include "muster/device/sys_cores.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;

// Linux's files of two sockets with one NUMA node each; each has two cores of two threads and,
// where wanted, one last-level cache a core.
void write_machine(const ScratchFolder& root, bool with_l3) {
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4;
    const int socket = core / 2;
    const std::string folder = cat("sys/devices/system/cpu/cpu", cpu);
    const auto mask = [](unsigned bits) {
      char text[16];
      std::snprintf(text, sizeof(text), "%08x\n", bits);
      return std::string(text);
    };
    const unsigned threads = 0x11U << core;
    const unsigned package = socket == 0 ? 0x33 : 0xcc;
    root.write(folder + "/online", "1\n");
    root.write(folder + "/topology/physical_package_id", cat(socket, "\n"));
    root.write(folder + "/topology/core_id", cat(core % 2, "\n"));
    root.write(folder + "/topology/thread_siblings", mask(threads));
    root.write(folder + "/topology/core_cpus", mask(threads));
    root.write(folder + "/topology/core_siblings", mask(package));
    root.write(folder + "/topology/package_cpus", mask(package));
    if (!with_l3)
      continue;
    root.write(folder + "/cache/index0/level", "3\n");
    root.write(folder + "/cache/index0/type", "Unified\n");
    root.write(folder + "/cache/index0/size", "32768K\n");
    root.write(folder + "/cache/index0/shared_cpu_map", mask(threads));
  }
  root.write("sys/devices/system/cpu/online", "0-7\n");
  for (int node = 0; node < 2; ++node) {
    const std::string folder = cat("sys/devices/system/node/node", node);
    root.write(folder + "/cpumap", node == 0 ? "00000033\n" : "000000cc\n");
    root.write(folder + "/meminfo", cat("Node ", node, " MemTotal: 1048576 kB\n"));
    root.write(folder + "/distance", node == 0 ? "10 20\n" : "20 10\n");
  }
  root.write("sys/devices/system/node/online", "0-1\n");
  root.write("proc/cpuinfo", "\n");
  root.write("proc/meminfo", "MemTotal: 2097152 kB\n");
}

std::vector<CpuCore> cores_of(const ScratchFolder& root) {
  const ScopedEnv fs_root("HWLOC_FSROOT",
                          root.path().c_str());  // hwloc's own way to another machine
  const ScopedEnv components("HWLOC_COMPONENTS", "linux,stop");
  return read_cpu_cores();
}

TEST(CpuTopology, SocketsNodesAndThreads) {
  const ScratchFolder root;
  write_machine(root, true);
  EXPECT_THAT(cores_of(root),
              ElementsAre(CpuCore{{0, 4}, 0, 0, 0},
                          CpuCore{{1, 5}, 0, 0, 1},
                          CpuCore{{2, 6}, 1, 1, 2},
                          CpuCore{{3, 7}, 1, 1, 3}));
}

TEST(CpuTopology, WithoutLastLevelCacheASocketIsOneComplex) {
  const ScratchFolder root;
  write_machine(root, false);
  EXPECT_THAT(cores_of(root),
              ElementsAre(CpuCore{{0, 4}, 0, 0, 0},
                          CpuCore{{1, 5}, 0, 0, 0},
                          CpuCore{{2, 6}, 1, 1, 1},
                          CpuCore{{3, 7}, 1, 1, 1}));
}

TEST(SysCores, AreWhatHwlocFinds) {
  for (const bool with_l3 : {true, false}) {
    const ScratchFolder root;
    write_machine(root, with_l3);
    EXPECT_EQ(read_sys_cores(root.path(), {0, 1, 2, 3, 4, 5, 6, 7}), cores_of(root));
  }
}

TEST(SysCores, OfThisMachineAreThoseOfHwloc) {
  std::set<std::vector<int>> by_hwloc;
  for (const CpuCore& core : read_cpu_cores())
    by_hwloc.insert(core.cpus);
  std::set<std::vector<int>> by_sys;
  for (const CpuCore& core : read_sys_cores("", usable_cpus()))
    by_sys.insert(core.cpus);
  EXPECT_EQ(by_sys, by_hwloc);
}

TEST(SysCores, OnlyCpusThatAreAskedFor) {
  const ScratchFolder root;
  write_machine(root, true);
  EXPECT_THAT(read_sys_cores(root.path(), {5, 2}),
              ElementsAre(CpuCore{{5}, 0, 0, 0}, CpuCore{{2}, 1, 1, 1}));
}

TEST(SysCores, WithoutFilesACpuIsACore) {
  const ScratchFolder root;
  EXPECT_THAT(read_sys_cores(root.path(), {0, 3}), ElementsAre(CpuCore{{0}}, CpuCore{{3}}));
}

TEST(CpuTopology, ThisMachineHasTheCpusOfTheAffinityMask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
  std::set<int> expected;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mask))
      expected.insert(cpu);
  }
  std::set<int> found;
  for (const CpuCore& core : read_cpu_cores())
    found.insert(core.cpus.begin(), core.cpus.end());
  EXPECT_EQ(found, expected);
}

TEST(CpuTopology, OnlyCpusThatMayBeUsed) {
  const OnOneCpu one;
  const std::vector<CpuCore> cores = read_cpu_cores();
  ASSERT_EQ(cores.size(), 1);
  EXPECT_THAT(cores[0].cpus, ElementsAre(one.cpu()));
}

}  // namespace
}  // namespace muster
