#include "muster/device/nvml.h"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include "muster/device/links.h"
#include "tests/device/link_rows.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kTwoGpus =
    "version=570.86.15"
    "|uuid=GPU-11111111-aaaa-4bbb-8ccc-000000000001,name=NVIDIA Test 80GB,pci=00000000:3B:00.0,"
    "total=85899345920,free=85000000000,util=37,temp=41,power=123456,power_limit=700000,cc=9.0,ecc="
    "0,pcie_"
    "gen=5,"
    "pcie_width=16,affinity=ff,procs=100:2000/101:none"
    "|uuid=GPU-22222222-aaaa-4bbb-8ccc-000000000002,name=NVIDIA Test 80GB,pci=00010000:C1:00.0,"
    "total=85899345920,free=85899345920,cc=9.0,affinity=f0f";

NvmlReport probe(const char* machine, NvmlOptions options = {}) {
  const ScopedEnv env("FAKE_NVML", machine);
  if (options.library.empty())
    options.library = FAKE_NVML_LIBRARY;
  return probe_nvml(options);
}

TEST(Nvml, ReadsEveryFieldOfEveryGpu) {
  const ScratchFolder sysfs;
  sysfs.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  sysfs.write("sys/bus/pci/devices/0000:3b:00.0/local_cpulist", "32-63,96-127\n");
  sysfs.write("sys/bus/pci/devices/10000:c1:00.0/numa_node", "-1\n");
  const auto report = probe(kTwoGpus, {.detail = GpuDetail::full, .sysroot = sysfs.path()});
  EXPECT_EQ(report.driver_version, "570.86.15");
  EXPECT_EQ(report.note, "");
  ASSERT_EQ(report.gpus.size(), 2);
  Gpu first;
  first.index = {0};
  first.uuid = {"GPU-11111111-aaaa-4bbb-8ccc-000000000001"};
  first.pci = {"0000:3b:00.0"};
  first.model = "NVIDIA Test 80GB";
  first.memory_total_bytes = 85899345920;
  first.memory_free_bytes = 85000000000;
  first.utilization_percent = 37;
  first.temperature_celsius = 41;
  first.power_watts = 123.456;
  first.power_limit_watts = 700;
  first.ecc_uncorrected_errors = 0;
  first.pcie_generation = 5;
  first.pcie_width = 16;
  first.near_cpus = "32-63,96-127";
  first.compute_capability = "9.0";
  first.numa_node = 1;
  first.processes = {{100, 2000}, {101, 0}};
  EXPECT_EQ(report.gpus[0], first);
  const Gpu& second = report.gpus[1];
  EXPECT_EQ(second.index.value, 1);
  EXPECT_EQ(second.pci.value, "10000:c1:00.0");
  EXPECT_EQ(second.numa_node, std::nullopt);
  EXPECT_EQ(second.near_cpus, "0-3,8-11") << "where sysfs does not tell, NVML does";
  EXPECT_EQ(second.ecc_uncorrected_errors, std::nullopt);
  EXPECT_EQ(second.pcie_generation, std::nullopt);
  EXPECT_EQ(second.utilization_percent, std::nullopt);
  EXPECT_EQ(second.power_watts, std::nullopt);
  EXPECT_EQ(second.health, kHealthy);
  EXPECT_THAT(second.processes, IsEmpty());
}

TEST(Nvml, AsksForActivityOnlyWhenWanted) {
  void* const library = dlopen(FAKE_NVML_LIBRARY, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto calls = reinterpret_cast<int (*)()>(dlsym(library, "fake_nvml_activity_calls"));
  const auto sessions = reinterpret_cast<int (*)()>(dlsym(library, "fake_nvml_open_sessions"));
  const int before = calls();  // not 0 where an earlier test's dlclose left the library in place
  const auto brief = probe(kTwoGpus);
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(brief.gpus.at(0).utilization_percent, std::nullopt);
  EXPECT_EQ(brief.gpus.at(0).memory_free_bytes, 85000000000);
  probe(kTwoGpus, {.detail = GpuDetail::full});
  EXPECT_GT(calls(), before);
  EXPECT_EQ(sessions(), 0) << "every nvmlInit has its nvmlShutdown";
  dlclose(library);
}

TEST(Nvml, OldDriverWithoutNewerFunctions) {
  const auto report = probe(
      "version=418.40|uuid=GPU-33333333-aaaa-4bbb-8ccc-000000000003,name=Old,pci=0000:AF:00.0,"
      "total=100,free="
      "60,"
      "procs=7:70/8:80/9:90",
      {.detail = GpuDetail::full, .library = FAKE_NVML_OLD_LIBRARY});
  ASSERT_EQ(report.gpus.size(), 1);
  EXPECT_EQ(report.gpus[0].pci.value, "0000:af:00.0");
  EXPECT_EQ(report.gpus[0].health, kHealthy);
  EXPECT_THAT(report.gpus[0].processes,
              ElementsAre(GpuProcess{7, 70}, GpuProcess{8, 80}, GpuProcess{9, 90}));
}

TEST(Nvml, OldDriverNamesErrorsByNumber) {
  const auto report = probe("version=418.40|handle=15", {.library = FAKE_NVML_OLD_LIBRARY});
  EXPECT_EQ(report.gpus.at(0).health, "NVML error 15");
}

TEST(Nvml, MoreProcessesThanTheFirstGuess) {
  std::string machine = "version=1|uuid=GPU-1,procs=1:1";
  for (int pid = 2; pid <= 90; ++pid)
    machine += "/" + std::to_string(pid) + ":1";
  const auto report = probe(machine.c_str(), {.detail = GpuDetail::full});
  ASSERT_EQ(report.gpus.at(0).processes.size(), 90);
  EXPECT_EQ(report.gpus[0].processes[89].pid, 90);
}

TEST(Nvml, LostGpuIsKeptWithItsHealth) {
  const auto report = probe("version=1|handle=15|uuid=GPU-2,name=Good");
  ASSERT_EQ(report.gpus.size(), 2);
  EXPECT_EQ(report.gpus[0].health, "GPU is lost");
  EXPECT_EQ(report.gpus[0].uuid.value, "");
  EXPECT_EQ(report.gpus[1].health, kHealthy);
  EXPECT_EQ(report.gpus[1].index.value, 1) << "indices do not move up";
}

TEST(Nvml, GpuLostAfterItsHandle) {
  const auto report = probe("version=1|uuid=GPU-1,name=A,memory_code=15|uuid_code=999,name=B");
  EXPECT_EQ(report.gpus.at(0).uuid.value, "GPU-1");
  EXPECT_EQ(report.gpus.at(0).health, "GPU is lost");
  EXPECT_EQ(report.gpus.at(1).health, "Unknown Error");
}

TEST(Nvml, UncorrectedEccErrorsAreUnhealthy) {
  EXPECT_FALSE(probe("version=1|uuid=GPU-1,retiring=0,remapping=0").gpus[0].repair_pending);
  EXPECT_TRUE(probe("version=1|uuid=GPU-1,retiring=1").gpus[0].repair_pending);
  EXPECT_TRUE(probe("version=1|uuid=GPU-1,remapping=1").gpus[0].repair_pending);
  const auto report = probe("version=1|uuid=GPU-1,ecc=1|uuid=GPU-2,ecc=12|uuid=GPU-3,ecc=0");
  EXPECT_EQ(report.gpus.at(0).health, "1 uncorrected ECC error since the driver loaded");
  EXPECT_EQ(report.gpus.at(1).health, "12 uncorrected ECC errors since the driver loaded");
  EXPECT_EQ(report.gpus.at(2).health, kHealthy);
}

TEST(Nvml, WhatAGpuCannotTellIsNoIllness) {
  const auto report = probe("version=1|uuid=GPU-1,memory_code=3", {.detail = GpuDetail::full});
  EXPECT_EQ(report.gpus.at(0).health, kHealthy);
  EXPECT_EQ(report.gpus.at(0).memory_total_bytes, 0);
}

TEST(Nvml, TroubleWithWhatDoesNotMatterIsNoIllness) {
  EXPECT_EQ(probe("version=1|uuid=GPU-1,pcie_code=999").gpus.at(0).health, kHealthy);
  EXPECT_EQ(probe("version=1|uuid=GPU-1,pcie_code=15").gpus.at(0).health, "GPU is lost");
}

TEST(NvmlMig, Instances) {
  const auto report = probe(
      "version=1|uuid=GPU-1,name=NVIDIA A100-SXM4-40GB,total=42949672960,free=42949672960,mig=1,"
      "migs=MIG-a:NVIDIA A100-SXM4-40GB MIG 3g.20gb:19968:3:3;;MIG-b::4864:1:1;MIG-c::9856:2:1"
      "|uuid=GPU-2,mig=0,migs=MIG-hidden::1:1:1");
  const Gpu& split = report.gpus.at(0);
  EXPECT_TRUE(split.mig_enabled);
  EXPECT_EQ(split.health, kHealthy);
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_THAT(split.mig,
              ElementsAre(MigInstance{{"MIG-a"}, "3g.20gb", 19968 * kMiB},
                          MigInstance{{"MIG-b"}, "1g.5gb", 4864 * kMiB},
                          MigInstance{{"MIG-c"}, "1c.2g.10gb", 9856 * kMiB}));
  EXPECT_FALSE(report.gpus.at(1).mig_enabled);
  EXPECT_THAT(report.gpus.at(1).mig, IsEmpty());
}

// The memory in a profile's name is a share of the GPU's in eighths, not the instance's own.
TEST(NvmlMig, ProfileByAttributes) {
  const auto report = probe(
      "version=1|uuid=GPU-1,total=150754820096,free=0,mig=1,"
      "migs=MIG-a::16384:1:1;MIG-b::71424:3:3;MIG-c::143360:7:7");
  std::vector<std::string> profiles;
  for (const MigInstance& instance : report.gpus.at(0).mig)
    profiles.push_back(instance.profile);
  EXPECT_THAT(profiles, ElementsAre("1g.18gb", "3g.71gb", "7g.141gb"));
}

TEST(NvmlMig, ModeWithoutInstanceTakesNoWork) {
  const auto report = probe("version=1|uuid=GPU-1,mig=1");
  EXPECT_THAT(report.gpus.at(0).health, StartsWith("MIG mode is on, but it has no instance"));
}

TEST(NvmlLinks, StraightAndByPci) {
  const char* const machine =
      "version=1|uuid=GPU-0,pci=00000000:01:00.0,links=@1/@1/-/@2,topo=0:50:50:10"
      "|uuid=GPU-1,pci=00000000:02:00.0,links=@0/@0,topo=50:0:20:30"
      "|uuid=GPU-2,pci=00000000:03:00.0,links=@0,topo=50:20:0:40"
      "|uuid=GPU-3,pci=00000000:04:00.0,topo=10:30:40:0";
  EXPECT_THAT(link_rows(probe(machine, {.links = true}).links),
              ElementsAre("X NV2 NV1 PIX", "NV2 X PXB PHB", "NV1 PXB X NODE", "PIX PHB NODE X"));
  EXPECT_THAT(probe(machine).links, IsEmpty()) << "only when asked for";
}

TEST(NvmlLinks, SwitchesJoinEveryPair) {
  EXPECT_THAT(link_rows(probe("version=1|uuid=GPU-0,pci=00000000:01:00.0,links=s/s/s/s,topo=0:50:50"
                              "|uuid=GPU-1,pci=00000000:02:00.0,links=s/s/-/s,topo=50:0:50"
                              "|uuid=GPU-2,pci=00000000:03:00.0,links=?/-,topo=50:50:0",
                              {.links = true})
                            .links),
              ElementsAre("X NV3 SYS", "NV3 X SYS", "SYS SYS X"));
}

TEST(NvmlLinks, LostGpuAndOldDriver) {
  EXPECT_THAT(link_rows(probe("version=1|handle=15|uuid=GPU-1,topo=0:0", {.links = true}).links),
              ElementsAre("X ?", "? X"));
  EXPECT_THAT(link_rows(probe("version=1|uuid=GPU-0|uuid=GPU-1",
                              {.library = FAKE_NVML_OLD_LIBRARY, .links = true})
                            .links),
              ElementsAre("X ?", "? X"));
}

TEST(Nvml, NoDriverIsANote) {
  const ScopedEnv env("MUSTER_NVML_LIBRARY", nullptr);
  const auto report = probe_nvml({.driver_files = {"/nowhere/nvidiactl"}});
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.note, "no NVIDIA driver is loaded (no /nowhere/nvidiactl)");
}

TEST(Nvml, MissingLibraryIsANote) {
  const auto report = probe_nvml({.library = "/nowhere/libnvidia-ml.so.1"});
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_THAT(report.note, StartsWith("NVML: cannot load /nowhere/libnvidia-ml.so.1: "));
  EXPECT_THAT(report.note, Not(HasSubstr("\n")));
}

TEST(Nvml, LibraryThatIsNoNvmlIsANote) {
  const auto report = probe_nvml({.library = "libm.so.6"});
  EXPECT_EQ(report.note, "NVML: libm.so.6 lacks functions that every NVML has");
}

TEST(Nvml, DriverThatDoesNotStart) {
  EXPECT_EQ(probe("init=9").note, "the NVIDIA driver does not answer: Driver Not Loaded");
  EXPECT_EQ(probe("count=999").note,
            "the NVIDIA driver does not say how many GPUs it has: Unknown Error");
  EXPECT_EQ(probe("version=570.1").note, "NVIDIA driver 570.1 is loaded, but has no GPU");
}

TEST(Nvml, LibraryFromTheEnvironment) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY);
  const ScopedEnv machine("FAKE_NVML", kTwoGpus);
  EXPECT_EQ(probe_nvml({.driver_files = {"/nowhere"}}).gpus.size(), 2);
}

}  // namespace
}  // namespace muster
