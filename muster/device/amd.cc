#include "muster/device/amd.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/device/kfd.h"
#include "muster/device/pci_tree.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> read_number(const fs::path& path) {
  return parse_int(read_line(path));
}

// 90010 → "gfx90a": major, then minor and stepping in one hexadecimal digit each.
std::string gfx_name(uint64_t version) {
  if (version == 0)
    return "";
  char text[32];
  std::snprintf(text,
                sizeof(text),
                "gfx%u%x%x",
                static_cast<unsigned>(version / 10000),
                static_cast<unsigned>(version / 100 % 100),
                static_cast<unsigned>(version % 100));
  return text;
}

// Its folder in sysfs: by the bus or, where a container shows only graphics devices, by these.
fs::path device_folder(const std::string& sysroot, const std::string& pci) {
  std::error_code error;
  fs::path folder = sysroot + "/sys/bus/pci/devices/" + pci;
  if (fs::exists(folder, error))
    return folder;
  for (const auto& card : fs::directory_iterator(sysroot + "/sys/class/drm", error)) {
    std::ifstream uevent(card.path() / "device" / "uevent");
    for (std::string line; std::getline(uevent, line);) {
      if (line == cat("PCI_SLOT_NAME=", pci))
        return card.path() / "device";
    }
  }
  return folder;
}

// "16.0 GT/s PCIe" → 4
std::optional<int> pcie_generation(const std::string& speed) {
  constexpr const char* kSpeeds[] = {"2.5", "5", "8", "16", "32", "64"};
  std::string number = speed.substr(0, speed.find(' '));
  if (number.ends_with(".0"))
    number.resize(number.size() - 2);
  for (size_t i = 0; i < std::size(kSpeeds); ++i) {
    if (number == kSpeeds[i])
      return static_cast<int>(i) + 1;
  }
  return std::nullopt;
}

// "ue: 0" and "ce: 0" in a file for each part of the GPU; memory's is the one that matters to a
// job.
std::optional<uint64_t> uncorrected_errors(const fs::path& folder) {
  std::ifstream file(folder / "ras" / "umc_err_count");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("ue:"))
      continue;
    const auto count = parse_int(trim(line.substr(3)));
    if (count && *count >= 0)
      return static_cast<uint64_t>(*count);
  }
  return std::nullopt;
}

void read_amd_properties(Gpu& gpu, const KfdGpu& node, const fs::path& folder) {
  gpu.vendor = Vendor::amd;
  gpu.pci = node.pci;
  const uint64_t unique_id = value_of(node.properties, "unique_id");
  std::string id = unique_id != 0 ? to_hex(unique_id, 16) : read_line(folder / "unique_id");
  gpu.uuid.value = id.empty() ? cat(kNoUniqueId, node.pci.value) : cat("GPU-", id);
  gpu.compute_capability = gfx_name(value_of(node.properties, "gfx_target_version"));
  gpu.model = read_line(folder / "product_name");
  if (gpu.model.empty())
    gpu.model = cat("AMD GPU 0x", to_hex(value_of(node.properties, "device_id"), 4));
  gpu.pcie_generation = pcie_generation(read_line(folder / "max_link_speed"));
  const auto width = read_number(folder / "max_link_width");
  if (width && *width > 0 && *width <= 64)
    gpu.pcie_width = static_cast<int>(*width);
}

void read_vram(Gpu& gpu, const KfdGpu& node, const fs::path& folder) {
  const auto total = read_number(folder / "mem_info_vram_total");
  const auto used = read_number(folder / "mem_info_vram_used");
  gpu.memory_total_bytes = total && *total > 0 ? static_cast<uint64_t>(*total) : node.memory_bytes;
  gpu.memory_free_bytes = gpu.memory_total_bytes;
  if (used && *used > 0) {
    gpu.memory_free_bytes -= std::min(gpu.memory_total_bytes, static_cast<uint64_t>(*used));
  }
}

void read_health(Gpu& gpu, const fs::path& folder, std::set<std::string>& seen) {
  gpu.ecc_uncorrected_errors = uncorrected_errors(folder);
  if (gpu.ecc_uncorrected_errors.value_or(0) > 0) {
    gpu.health = cat(plural(*gpu.ecc_uncorrected_errors, "uncorrected memory error"),
                     " since the driver loaded");
  }
  // Parts of one GPU that an old driver cannot tell apart would be taken for one device.
  if (!seen.insert(gpu.uuid.value).second)
    gpu.health = "has the same unique id as another";
}

// The GPU's folder of sensors; empty when it has none.
fs::path sensors_folder(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder / "hwmon", error))
    return entry.path();
  return {};
}

// The first of `names` that can be read.
std::optional<int64_t> first_number(const fs::path& folder,
                                    std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (const auto value = read_number(folder / name))
      return value;
  }
  return std::nullopt;
}

void read_activity(Gpu& gpu, const fs::path& folder) {
  const auto busy = read_number(folder / "gpu_busy_percent");
  if (busy && *busy >= 0 && *busy <= 100)
    gpu.utilization_percent = static_cast<int>(*busy);
  const fs::path sensors = sensors_folder(folder);
  if (sensors.empty())
    return;
  // Degrees and watts are in thousandths and millionths. Some have a sensor at the edge, some in
  // the middle only; some tell an average of power, some what it is now.
  const auto temperature = first_number(sensors, {"temp1_input", "temp2_input"});
  if (temperature)
    gpu.temperature_celsius = static_cast<int>(*temperature / 1000);
  const auto power = first_number(sensors, {"power1_average", "power1_input"});
  if (power)
    gpu.power_watts = static_cast<double>(*power) / 1e6;
  const auto limit = read_number(sensors / "power1_cap");
  if (limit && *limit > 0)
    gpu.power_limit_watts = static_cast<double>(*limit) / 1e6;
}

std::vector<std::vector<Link>> read_links(const std::vector<KfdGpu>& gpus) {
  std::vector links(gpus.size(), std::vector<Link>(gpus.size()));
  for (size_t i = 0; i < gpus.size(); ++i) {
    links[i][i] = {.kind = LinkKind::self};
    for (const KfdLink& link : gpus[i].links) {
      if (!link.xgmi || link.count == 0)
        continue;
      for (size_t j = 0; j < gpus.size(); ++j) {
        if (j != i && gpus[j].node == link.to_node)
          links[i][j] = links[j][i] = {LinkKind::xgmi, link.count};
      }
    }
  }
  return links;
}

}  // namespace

AmdReport probe_amd(const AmdOptions& options) {
  AmdReport report;
  if (!has_kfd(options.sysroot))
    return report;
  const auto nodes = read_kfd_gpus(options.sysroot, options.links);
  std::set<std::string> seen;
  for (const KfdGpu& node : nodes) {
    const fs::path folder = device_folder(options.sysroot, node.pci.value);
    Gpu gpu;
    gpu.index.value = static_cast<int>(report.gpus.size());
    read_amd_properties(gpu, node, folder);
    read_vram(gpu, node, folder);
    read_health(gpu, folder, seen);
    const PciPlace place = find_pci_place(options.sysroot, node.pci);
    gpu.numa_node = place.numa_node;
    gpu.near_cpus = place.near_cpus;
    if (options.detail == GpuDetail::full)
      read_activity(gpu, folder);
    if (options.detail != GpuDetail::placement)
      gpu.processes = read_kfd_processes(options.sysroot, node.gpu_id);
    report.gpus.push_back(std::move(gpu));
  }
  if (options.links)
    report.links = read_links(nodes);
  report.driver_version = read_line(options.sysroot + "/sys/module/amdgpu/version");
  if (report.gpus.empty())
    report.note = "AMD's driver is loaded, but shows this process no GPU";
  return report;
}

}  // namespace muster
