#include "muster/device/amd.h"

#include <gmock/gmock.h>

#include "muster/device/links.h"
#include "tests/device/pci_machine.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kGpuSimds = 440;

// A machine with a CPU node and GPUs, as amdgpu and amdkfd show it. Numbers are made up, names are
// theirs.
class Amd : public testing::Test {
 protected:
  Amd() { add_kfd_node(root_, 0, 0, {{"cpu_cores_count", 64}, {"simd_count", 0}}); }

  // location: bus, device and function as PCI packs them.
  void add_gpu(int node, uint64_t unique_id, uint64_t bus, uint64_t domain = 0) {
    add_kfd_node(root_,
                 node,
                 1000 + static_cast<uint64_t>(node),
                 {{"simd_count", kGpuSimds},
                  {"location_id", bus << 8},
                  {"domain", domain},
                  {"unique_id", unique_id},
                  {"device_id", 0x740c},
                  {"gfx_target_version", 90010}});
  }

  void link(int from, int number, int to, std::map<std::string, uint64_t> properties) {
    properties["node_from"] = static_cast<uint64_t>(from);
    properties["node_to"] = static_cast<uint64_t>(to);
    add_kfd_link(root_, from, number, properties);
  }

  AmdReport probe(GpuDetail detail = GpuDetail::placement, bool links = false) {
    return probe_amd({.detail = detail, .links = links, .sysroot = root_.path()});
  }

  ScratchFolder root_;
};

TEST_F(Amd, NoDriverIsNoGpuAndNoNote) {
  const AmdReport report = probe_amd({.sysroot = "/nowhere"});
  EXPECT_THAT(report.gpus, IsEmpty());
  EXPECT_EQ(report.note, "");
}

TEST_F(Amd, DriverWithoutGpu) {
  EXPECT_EQ(probe().note, "AMD's driver is loaded, but shows this process no GPU");
}

TEST_F(Amd, ReadsEveryField) {
  add_gpu(1, 0x00d1badd00d5ca1eULL, 0xc1);
  const std::string device = "pci0000:c0/0000:c0:01.0/0000:c1:00.0";
  add_pci_device(root_, device, 3, "48-63,112-127");
  const auto write = [&](const char* name, const char* text) {
    root_.write(cat("sys/devices/", device, "/", name), text);
  };
  write("mem_info_vram_total", "68702699520\n");
  write("mem_info_vram_used", "10737418240\n");
  write("product_name", "AMD INSTINCT MI250X\n");
  write("max_link_speed", "16.0 GT/s PCIe\n");
  write("max_link_width", "16\n");
  write("gpu_busy_percent", "97\n");
  write("ras/umc_err_count", "ue: 0\nce: 12\n");
  write("hwmon/hwmon7/temp1_input", "41000\n");
  write("hwmon/hwmon7/power1_average", "123456000\n");
  write("hwmon/hwmon7/power1_cap", "560000000\n");
  root_.write("sys/module/amdgpu/version", "6.7.0\n");
  root_.write("sys/class/kfd/kfd/proc/4711/vram_1001", "10000000\n");
  root_.write("sys/class/kfd/kfd/proc/815/vram_1001", "0\n");

  const AmdReport report = probe(GpuDetail::full);
  EXPECT_EQ(report.driver_version, "6.7.0");
  EXPECT_EQ(report.note, "");
  Gpu gpu;
  gpu.uuid = {"GPU-00d1badd00d5ca1e"};
  gpu.pci = {"0000:c1:00.0"};
  gpu.vendor = Vendor::amd;
  gpu.model = "AMD INSTINCT MI250X";
  gpu.memory_total_bytes = 68702699520;
  gpu.memory_free_bytes = 68702699520 - 10737418240;
  gpu.utilization_percent = 97;
  gpu.temperature_celsius = 41;
  gpu.power_watts = 123.456;
  gpu.power_limit_watts = 560;
  gpu.ecc_uncorrected_errors = 0;
  gpu.compute_capability = "gfx90a";
  gpu.pcie_generation = 4;
  gpu.pcie_width = 16;
  gpu.numa_node = 3;
  gpu.near_cpus = "48-63,112-127";
  gpu.processes = {{4711, 10000000}};
  EXPECT_THAT(report.gpus, ElementsAre(gpu));
  gpu.utilization_percent = gpu.temperature_celsius = std::nullopt;
  gpu.power_watts = gpu.power_limit_watts = std::nullopt;
  gpu.processes.clear();
  EXPECT_THAT(probe().gpus, ElementsAre(gpu)) << "a plan needs less";
}

TEST_F(Amd, WithFewFiles) {
  add_gpu(1, 0, 0x03, 1);
  root_.write("sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties",
              "heap_type 1\nsize_in_bytes 1000\n");
  root_.write("sys/class/kfd/kfd/topology/nodes/1/mem_banks/1/properties",
              "heap_type 2\nsize_in_bytes 24\n");
  root_.write("sys/class/kfd/kfd/topology/nodes/1/mem_banks/2/properties",
              "heap_type 4\nsize_in_bytes 9\n");
  const Gpu gpu = probe(GpuDetail::full).gpus.at(0);
  EXPECT_EQ(gpu.uuid.value, "GPU-pci-0001:03:00.0") << "no unique id";
  EXPECT_EQ(gpu.model, "AMD GPU 0x740c");
  EXPECT_EQ(gpu.memory_total_bytes, 1024);
  EXPECT_EQ(gpu.memory_free_bytes, 1024);
  EXPECT_EQ(gpu.health, kHealthy);
}

TEST_F(Amd, FolderByItsGraphicsDevice) {
  add_gpu(1, 7, 0x03);
  root_.write("sys/class/drm/card0/device/uevent", "PCI_SLOT_NAME=0000:02:00.0\n");
  root_.write("sys/class/drm/card1/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n");
  root_.write("sys/class/drm/card1/device/mem_info_vram_total", "4096\n");
  EXPECT_EQ(probe().gpus.at(0).memory_total_bytes, 4096);
}

TEST_F(Amd, OrderIsThatOfNodesByNumber) {
  add_gpu(10, 0xa, 0x0a);
  add_gpu(2, 0x2, 0x22);
  add_gpu(3, 0x3, 0x11);
  std::vector<std::string> uuids;
  for (const Gpu& gpu : probe().gpus)
    uuids.push_back(cat(gpu.index.value, " ", gpu.uuid.value));
  EXPECT_THAT(
      uuids,
      ElementsAre("0 GPU-0000000000000002", "1 GPU-0000000000000003", "2 GPU-000000000000000a"));
}

TEST_F(Amd, ErrorsAreItsHealth) {
  add_gpu(1, 5, 0x03);
  add_pci_device(root_, "pci0000:00/0000:00:01.0/0000:03:00.0", 0, "0-3");
  root_.write("sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/ras/umc_err_count",
              "ue: 2\nce: 0\n");
  add_gpu(2, 5, 0x04);
  const AmdReport report = probe();
  EXPECT_EQ(report.gpus.at(0).health, "2 uncorrected memory errors since the driver loaded");
  EXPECT_EQ(report.gpus.at(1).health, "has the same unique id as another");
}

TEST_F(Amd, HostileFilesAreReadAsUnknown) {
  add_gpu(1, 5, 0x03);
  add_pci_device(root_, "pci0000:00/0000:00:01.0/0000:03:00.0", 0, "0-3");
  const auto write = [&](const char* name, const char* text) {
    root_.write(cat("sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0/", name), text);
  };
  write("mem_info_vram_total", "-5\n");
  write("mem_info_vram_used", "99999999999999999999999\n");
  write("gpu_busy_percent", "1000\n");
  write("max_link_speed", "Unknown\n");
  write("max_link_width", "255\n");
  write("ras/umc_err_count", "ue: many\n");
  root_.write("sys/class/kfd/kfd/topology/nodes/x/gpu_id", "5\n");
  root_.write("sys/class/kfd/kfd/topology/nodes/2/gpu_id", "");  // not for this process
  const AmdReport report = probe(GpuDetail::full);
  ASSERT_EQ(report.gpus.size(), 1);
  EXPECT_EQ(report.gpus[0].memory_total_bytes, 0);
  EXPECT_EQ(report.gpus[0].utilization_percent, std::nullopt);
  EXPECT_EQ(report.gpus[0].pcie_generation, std::nullopt);
  EXPECT_EQ(report.gpus[0].pcie_width, std::nullopt);
  EXPECT_EQ(report.gpus[0].ecc_uncorrected_errors, std::nullopt);
}

TEST_F(Amd, InfinityFabricLinks) {
  for (int node = 1; node <= 4; ++node)
    add_gpu(node, static_cast<uint64_t>(node), static_cast<uint64_t>(node));
  link(1, 0, 0, {{"type", 2}});
  link(
      1, 1, 2, {{"type", 11}, {"weight", 15}, {"min_bandwidth", 50000}, {"max_bandwidth", 200000}});
  link(1, 2, 3, {{"type", 11}, {"weight", 15}});
  link(1, 3, 4, {{"type", 11}, {"weight", 30}, {"min_bandwidth", 50000}, {"max_bandwidth", 0}});
  std::vector<std::string> first;
  const AmdReport report = probe(GpuDetail::placement, true);
  for (const Link& link : report.links.at(0))
    first.push_back(to_string(link));
  EXPECT_THAT(first, ElementsAre("X", "XGMI4", "XGMI1", "?"));
  EXPECT_EQ(to_string(report.links[1][0]), "XGMI4") << "told on one side, true on both";
  EXPECT_THAT(probe().links, IsEmpty());
}

}  // namespace
}  // namespace muster
