// KFD says which GPUs there are and in which order (kfd.h); each one's folder on the PCI bus says
// the rest, one small file for each fact. A file that is missing or holds nonsense leaves its fact
// unknown: older kernels and containers show less.
#include "muster/device/amd.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <vector>

#include "muster/base/folders.h"
#include "muster/base/hex.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/kfd.h"
#include "muster/device/links.h"
#include "muster/device/numbers.h"
#include "muster/device/pci_tree.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> read_number(const fs::path& path) {
  return parse_int(read_line(path));
}

std::optional<int> read_number(const fs::path& path, int least, int most) {
  return parse_number(read_line(path), least, most);
}

// Returns "gfx90a" for 90010: the major version, then minor and stepping in hexadecimal.
std::string gfx_name(unsigned version) {
  if (version == 0)
    return "";
  char text[32];
  std::snprintf(
      text, sizeof(text), "gfx%u%x%x", version / 10000, version / 100 % 100, version % 100);
  return text;
}

bool holds_line(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line == wanted)
      return true;
  }
  return false;
}

// Returns the GPU's folder in sysfs. A container may show only graphics devices and not the bus;
// the folder is then found by the address that each card gives.
fs::path device_folder(const std::string& sysroot, const std::string& pci) {
  fs::path folder = sysroot + "/sys/bus/pci/devices/" + pci;
  if (path_exists(folder))
    return folder;
  for (const fs::path& card : paths_in(sysroot + "/sys/class/drm")) {
    const fs::path device = card / "device";
    if (holds_line(device / "uevent", cat("PCI_SLOT_NAME=", pci)))
      return device;
  }
  return folder;
}

// The driver writes "ue: 0" and "ce: 0" into a file for each part of the GPU. The memory's file is
// the one that matters to a job.
std::optional<uint64_t> uncorrected_errors(const fs::path& folder) {
  std::ifstream file(folder / "ras" / "umc_err_count");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("ue:"))
      continue;
    const auto count = parse_int(trim(line.substr(3)));
    if (count && *count >= 0)
      return *count;
  }
  return std::nullopt;
}

// The driver's id is the GPU's own. A GPU without one goes by its PCI address, which only muster
// understands.
std::string amd_uuid(const KfdGpu& node, const fs::path& folder) {
  const uint64_t unique_id = find_or(node.properties, "unique_id");
  const std::string id = unique_id != 0 ? to_hex(unique_id, 16) : read_line(folder / "unique_id");
  return id.empty() ? cat(kNoUniqueId, node.pci.value) : cat("GPU-", id);
}

// A GPU without a product name goes by its PCI device number.
void read_amd_properties(Gpu& gpu, const KfdGpu& node, const fs::path& folder) {
  gpu.vendor = Vendor::amd;
  gpu.pci = node.pci;
  gpu.uuid.value = amd_uuid(node, folder);
  gpu.compute_capability = gfx_name(find_or(node.properties, "gfx_target_version"));
  gpu.model = read_line(folder / "product_name");
  if (gpu.model.empty())
    gpu.model = cat("AMD GPU 0x", to_hex(find_or(node.properties, "device_id"), 4));
  gpu.pcie_generation = pcie_generation(read_line(folder / "max_link_speed"));
  gpu.pcie_width = read_number(folder / "max_link_width", 1, 64);
}

// Without the driver's own numbers the memory is what KFD says, and all of it counts as free.
void read_vram(Gpu& gpu, const KfdGpu& node, const fs::path& folder) {
  const int64_t total = read_number(folder / "mem_info_vram_total").value_or(0);
  const int64_t used = read_number(folder / "mem_info_vram_used").value_or(0);
  gpu.memory_total_bytes = node.memory_bytes;
  if (total > 0)
    gpu.memory_total_bytes = total;
  gpu.memory_free_bytes = gpu.memory_total_bytes;
  if (used > 0)
    gpu.memory_free_bytes -= std::min<uint64_t>(gpu.memory_total_bytes, used);
}

// `seen` holds the UUIDs of the GPUs before this one.
void read_health(Gpu& gpu, const fs::path& folder, StringSet& seen) {
  gpu.ecc_uncorrected_errors = uncorrected_errors(folder);
  if (gpu.ecc_uncorrected_errors.value_or(0) > 0) {
    gpu.health = cat(plural(*gpu.ecc_uncorrected_errors, "uncorrected memory error"),
                     " since the driver loaded");
  }
  // Parts of one GPU that an old driver cannot tell apart would be taken for one device.
  if (!seen.insert(gpu.uuid.value).second)
    gpu.health = "has the same unique id as another";
}

// Returns the GPU's folder of sensors; empty when it has none.
fs::path sensors_folder(const fs::path& folder) {
  const Paths sensors = paths_in(folder / "hwmon");
  return sensors.empty() ? fs::path() : sensors.front();
}

// Returns the number in the first of the files that can be read.
std::optional<int64_t> first_number(const fs::path& folder,
                                    std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (const auto value = read_number(folder / name))
      return value;
  }
  return std::nullopt;
}

// What only `muster devices` shows: nothing here matters to placement.
void read_activity(Gpu& gpu, const fs::path& folder) {
  gpu.utilization_percent = read_number(folder / "gpu_busy_percent", 0, 100);
  const fs::path sensors = sensors_folder(folder);
  if (sensors.empty())
    return;
  // Degrees are in thousandths, watts in millionths. Some GPUs have a sensor at the edge, some in
  // the middle only; some tell an average of the power, some what it is now.
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

// Returns the square of links. KFD tells of a link at one of its ends or at both.
LinkMatrix read_links(const std::vector<KfdGpu>& gpus) {
  std::map<int, size_t> position;  // of each node that is a GPU
  for (const size_t i : indices_of(gpus))
    position[gpus[i].node] = i;
  LinkMatrix links = unknown_links(gpus.size());
  for (const size_t i : indices_of(gpus)) {
    for (const KfdLink& link : gpus[i].links) {
      const size_t* const other = value_at(position, link.to_node);
      const bool joins_gpus = link.xgmi && link.count > 0 && other != nullptr;
      if (joins_gpus && *other != i)
        links[i][*other] = links[*other][i] = {LinkKind::xgmi, link.count};
    }
  }
  return links;
}

Gpu read_amd_gpu(const KfdGpu& node, const AmdOptions& options, StringSet& seen) {
  Gpu gpu;
  const fs::path folder = device_folder(options.sysroot, node.pci.value);
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
  return gpu;
}

}  // namespace

// Links come last, since they join GPUs by their nodes and not by what was read of them.
AmdReport probe_amd(const AmdOptions& options) {
  AmdReport report;
  if (!has_kfd(options.sysroot))
    return report;
  const auto nodes = read_kfd_gpus(options.sysroot, options.links);
  StringSet seen;
  for (const KfdGpu& node : nodes) {
    Gpu& gpu = report.gpus.emplace_back(read_amd_gpu(node, options, seen));
    gpu.index.value = int_size(report.gpus) - 1;
  }
  if (options.links)
    report.links = read_links(nodes);
  report.driver_version = read_line(options.sysroot + "/sys/module/amdgpu/version");
  if (report.gpus.empty())
    report.note = "AMD's driver is loaded, but shows this process no GPU";
  return report;
}

}  // namespace muster
