#include "muster/device/probe.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "muster/base/error.h"
#include "muster/device/links.h"
#include "tests/device/link_rows.h"
#include "tests/device/pci_machine.h"

namespace muster {
namespace {

using testing::HasSubstr;

ProbeOptions without_driver() {
  ProbeOptions options;
  options.nvml.driver_files = {"/nowhere"};
  return options;
}

std::string error_of(const ProbeOptions& options) {
  try {
    probe_this_machine(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Probe, MachineWithoutGpus) {
  const ScopedEnv slots("MUSTER_CPU_SLOTS", nullptr);
  const ScopedEnv library("MUSTER_NVML_LIBRARY", nullptr);
  const Inventory inventory = probe_this_machine(without_driver());
  ASSERT_EQ(inventory.hosts.size(), 1);
  const Host& host = inventory.hosts[0];
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  EXPECT_EQ(host.name, name);
  EXPECT_GE(host.num_cores, 1);
  EXPECT_EQ(host.cpu_slots, 2);
  EXPECT_THAT(host.gpus, testing::IsEmpty());
  EXPECT_THAT(host.gpu_note, HasSubstr("no NVIDIA driver"));
  EXPECT_FALSE(inventory.simulated);
  EXPECT_EQ(inventory.source, "this machine");
}

TEST(Probe, GpusOfTheDriver) {
  const ScopedEnv machine("FAKE_NVML", "version=570.1|uuid=GPU-1,name=A|uuid=GPU-2,name=B");
  ProbeOptions options;
  options.nvml.library = FAKE_NVML_LIBRARY;
  const Inventory inventory = probe_this_machine(options);
  EXPECT_EQ(inventory.hosts[0].gpus.size(), 2);
  EXPECT_EQ(inventory.hosts[0].driver_version, "570.1");
  EXPECT_EQ(inventory.hosts[0].gpu_note, "");
  options.gpus = false;
  EXPECT_THAT(probe_this_machine(options).hosts[0].gpus, testing::IsEmpty());
}

// Two NVIDIA GPUs and two of AMD in one host, with a network card.
class MixedMachine : public testing::Test {
 protected:
  MixedMachine()
      : machine_("FAKE_NVML",
                 "version=570.1|uuid=GPU-n0,name=A,pci=00000000:01:00.0,links=@1/@1"
                 "|uuid=GPU-n1,name=A,pci=00000000:02:00.0,links=@0/@0") {
    options_.nvml.library = FAKE_NVML_LIBRARY;
    options_.sysroot = root_.path();
    add_pci_device(root_, "pci0000:00/0000:00:01.0/0000:01:00.0", 0, "0-3");
    add_pci_device(root_, "pci0000:00/0000:00:02.0/0000:02:00.0", 0, "0-3");
    add_pci_device(root_, "pci0000:80/0000:80:01.0/0000:81:00.0", 1, "4-7");
    add_pci_device(root_, "pci0000:80/0000:80:02.0/0000:82:00.0", 1, "4-7");
    add_pci_device(root_, "pci0000:80/0000:80:02.0/0000:82:00.1", 1, "4-7");
    add_nic(root_, "infiniband", "mlx5_0", "pci0000:80/0000:80:02.0/0000:82:00.1");
    for (uint64_t i = 1; i <= 2; ++i) {
      add_kfd_node(root_,
                   static_cast<int>(i),
                   i,
                   {{"simd_count", 440}, {"location_id", (0x80 + i) << 8}, {"unique_id", i}});
    }
  }

  const ScopedEnv machine_;
  ScratchFolder root_;
  ProbeOptions options_;
};

TEST_F(MixedMachine, AmdComesAfterNvidiaAndGoesOnCounting) {
  const Host host = probe_this_machine(options_).hosts.at(0);
  std::vector<std::string> gpus;
  for (const Gpu& gpu : host.gpus) {
    gpus.push_back(
        cat(gpu.index.value, gpu.vendor == Vendor::amd ? " amd " : " nvidia ", gpu.pci.value));
  }
  EXPECT_THAT(gpus,
              testing::ElementsAre("0 nvidia 0000:01:00.0",
                                   "1 nvidia 0000:02:00.0",
                                   "2 amd 0000:81:00.0",
                                   "3 amd 0000:82:00.0"));
  EXPECT_EQ(host.driver_version, "570.1");
  EXPECT_EQ(host.gpu_note, "");
  EXPECT_EQ(host.gpus[3].near_cpus, "4-7");
  EXPECT_THAT(host.gpu_links, testing::IsEmpty()) << "links only when asked for";
  EXPECT_THAT(host.nics, testing::IsEmpty());
  EXPECT_THAT(host.cores, testing::IsEmpty());
}

TEST_F(MixedMachine, LinksOfDriversAndOfPci) {
  add_kfd_link(root_, 1, 0, {{"type", 11}, {"weight", 15}, {"node_to", 2}});
  options_.links = true;
  const Host host = probe_this_machine(options_).hosts.at(0);
  EXPECT_THAT(
      link_rows(host.gpu_links),
      testing::ElementsAre("X NV2 SYS SYS", "NV2 X SYS SYS", "SYS SYS X XGMI1", "SYS SYS XGMI1 X"));
  EXPECT_THAT(host.nics, testing::ElementsAre(Nic{"mlx5_0", {"0000:82:00.1"}, 1}));
  EXPECT_THAT(link_rows(host.nic_links), testing::ElementsAre("SYS", "SYS", "PHB", "PIX"));
}

TEST_F(MixedMachine, AmdAlone) {
  options_.nvml.library.clear();
  const ScopedEnv library("MUSTER_NVML_LIBRARY", nullptr);
  root_.write("sys/module/amdgpu/version", "6.7.0\n");
  options_.links = true;
  const Host host = probe_this_machine(options_).hosts.at(0);
  EXPECT_EQ(host.gpus.at(0).index.value, 0);
  EXPECT_EQ(host.driver_version, "6.7.0");
  EXPECT_EQ(host.gpu_note, "");
  EXPECT_THAT(link_rows(host.gpu_links), testing::ElementsAre("X PHB", "PHB X"));
}

// As most virtual machines and single-socket machines are: the firmware names no node for any
// device.
TEST(Probe, WithOneNumaNodeEveryDeviceIsOnIt) {
  const ScopedEnv machine("FAKE_NVML", "version=570.1|uuid=GPU-n0,name=A,pci=00000000:01:00.0");
  const ScratchFolder root;
  add_pci_device(root, "pci0000:00/0000:00:01.0/0000:01:00.0", -1, "0-3");
  add_pci_device(root, "pci0000:00/0000:00:02.0/0000:02:00.0", -1, "0-3");
  add_nic(root, "net", "eth0", "pci0000:00/0000:00:02.0/0000:02:00.0");
  ProbeOptions options{.links = true, .sysroot = root.path()};
  options.nvml.library = FAKE_NVML_LIBRARY;
  EXPECT_EQ(probe_this_machine(options).hosts[0].gpus.at(0).numa_node, std::nullopt)
      << "no CPUs to be seen";
  root.write("sys/devices/system/cpu/online", "0-3\n");
  EXPECT_EQ(probe_this_machine(options).hosts[0].gpus.at(0).numa_node, 0)
      << "a kernel without NUMA";
  root.write("sys/devices/system/node/online", "3-4\n");
  root.write("sys/devices/system/node/has_cpu", "3\n");
  const Host one = probe_this_machine(options).hosts[0];
  EXPECT_EQ(one.gpus.at(0).numa_node, 3) << "the other node is memory alone";
  EXPECT_EQ(one.nics.at(0).numa_node, 3);
  root.write("sys/devices/system/node/has_cpu", "3-4\n");
  EXPECT_EQ(probe_this_machine(options).hosts[0].gpus.at(0).numa_node, std::nullopt);
}

TEST(Probe, SaysWhyNeitherVendorHasAGpu) {
  const ScopedEnv library("MUSTER_NVML_LIBRARY", nullptr);
  const ScratchFolder root;
  add_kfd_node(root, 0, 0, {{"simd_count", 0}});
  const Host host = probe_this_machine({.links = true, .sysroot = root.path()}).hosts.at(0);
  EXPECT_EQ(host.gpu_note,
            "no NVIDIA driver is loaded (no /dev/nvidiactl); AMD's driver is loaded, but shows "
            "this process no "
            "GPU");
}

TEST(Probe, CoresWhenAskedFor) {
  ProbeOptions options = without_driver();
  options.cpu_topology = true;
  EXPECT_THAT(probe_this_machine(options).hosts.at(0).cores, Not(testing::IsEmpty()));
}

TEST(Probe, CpuSlotsByOptionThenEnvironment) {
  const ScopedEnv slots("MUSTER_CPU_SLOTS", "5");
  ProbeOptions options = without_driver();
  EXPECT_EQ(probe_this_machine(options).hosts[0].cpu_slots, 5);
  options.cpu_slots = 3;
  EXPECT_EQ(probe_this_machine(options).hosts[0].cpu_slots, 3);
}

TEST(Probe, BadCpuSlotsAreErrors) {
  ProbeOptions options = without_driver();
  for (const char* const bad : {"0", "-1", "65537"}) {
    const ScopedEnv slots("MUSTER_CPU_SLOTS", bad);
    EXPECT_THAT(error_of(options), HasSubstr("in MUSTER_CPU_SLOTS, got " + std::string(bad)));
  }
  for (const char* const bad : {"two", "1.5", "3x"}) {
    const ScopedEnv slots("MUSTER_CPU_SLOTS", bad);
    EXPECT_THAT(error_of(options), HasSubstr("expected an integer in MUSTER_CPU_SLOTS"));
  }
  options.cpu_slots = -2;
  EXPECT_THAT(error_of(options), HasSubstr("in --cpu-slots, got -2"));
}

}  // namespace
}  // namespace muster
