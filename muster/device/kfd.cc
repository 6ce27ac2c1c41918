// The driver keeps a folder for each node, with a file of properties, one "name value" a line, and
// folders of the node's memory banks and links, which have such files too.
#include "muster/device/kfd.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/device/pci_tree.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kXgmi = 11;          // a link's type; PCIe is 2
constexpr uint64_t kWeightPerHop = 15;  // of an xGMI link
constexpr uint64_t kMaxXgmiLinks = 64;

// The types of memory banks on a GPU: the CPU can see all of the memory, or not.
constexpr uint64_t kHeapPublic = 1;
constexpr uint64_t kHeapPrivate = 2;

fs::path nodes_folder(const std::string& sysroot) {
  return sysroot + "/sys/class/kfd/kfd/topology/nodes";
}

// Reads the lines "name value"; others are passed over.
KfdProperties read_properties(const fs::path& path) {
  KfdProperties properties;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t blank = line.find(' ');
    if (blank == npos)
      continue;
    if (const auto value = parse_as<uint64_t>(trim(line.substr(blank + 1))))
      properties[line.substr(0, blank)] = *value;
  }
  return properties;
}

// The location holds the bus in eight bits, the device in five and the function in three.
PciAddress pci_of(const KfdProperties& properties) {
  const unsigned domain = find_or(properties, "domain");
  const unsigned location = find_or(properties, "location_id");
  const unsigned bus = location >> 8 & 0xff;
  const unsigned device = location >> 3 & 0x1f;
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%x", domain, bus, device, location & 7);
  return {text};
}

// Returns the sum of the banks on the GPU itself.
uint64_t memory_of(const fs::path& node) {
  uint64_t bytes = 0;
  for (const int bank : numbers_in_folder(node / "mem_banks")) {
    const auto properties = read_properties(node / "mem_banks" / cat(bank) / "properties");
    const uint64_t heap = find_or(properties, "heap_type");
    if (is_one_of(heap, kHeapPublic, kHeapPrivate))
      bytes += find_or(properties, "size_in_bytes");
  }
  return bytes;
}

// Returns how many xGMI links join two GPUs, none where the way leads over another GPU. Kernels
// tell the bandwidth of one link and of all together; where they do not, there is one at least.
int count_links(const KfdProperties& link) {
  if (find_or(link, "weight") > kWeightPerHop)
    return 0;
  const uint64_t one = find_or(link, "min_bandwidth");
  const uint64_t all = find_or(link, "max_bandwidth");
  if (one == 0)
    return 1;
  return static_cast<int>(std::clamp<uint64_t>(all / one, 1, kMaxXgmiLinks));
}

// Returns all links of the node; only xGMI links are counted, as a PCIe link leads to a CPU.
std::vector<KfdLink> links_of(const fs::path& node) {
  std::vector<KfdLink> links;
  for (const int number : numbers_in_folder(node / "io_links")) {
    const auto link = read_properties(node / "io_links" / cat(number) / "properties");
    if (!link.contains("node_to"))
      continue;
    const bool xgmi = find_or(link, "type") == kXgmi;
    links.push_back({.to_node = static_cast<int>(find_or(link, "node_to")),
                     .xgmi = xgmi,
                     .count = xgmi ? count_links(link) : 0});
  }
  return links;
}

}  // namespace

// The folder of nodes is there as soon as the driver is loaded.
bool has_kfd(const std::string& sysroot) {
  return path_exists(nodes_folder(sysroot));
}

std::vector<KfdGpu> read_kfd_gpus(const std::string& sysroot, bool links) {
  std::vector<KfdGpu> gpus;
  for (const int number : numbers_in_folder(nodes_folder(sysroot))) {
    const fs::path node = nodes_folder(sysroot) / cat(number);
    // 0 is a CPU. A container that may not use a GPU cannot read its files, and ROCm leaves such a
    // GPU out too.
    const auto gpu_id = parse_as<uint64_t>(read_line(node / "gpu_id"));
    if (!gpu_id || *gpu_id == 0)
      continue;
    KfdGpu gpu{
        .node = number, .gpu_id = *gpu_id, .properties = read_properties(node / "properties")};
    if (find_or(gpu.properties, "simd_count") == 0)
      continue;
    gpu.pci = pci_of(gpu.properties);
    gpu.memory_bytes = memory_of(node);
    if (links)
      gpu.links = links_of(node);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::vector<GpuProcess> read_kfd_processes(const std::string& sysroot, uint64_t gpu_id) {
  std::vector<GpuProcess> processes;
  const fs::path folder = sysroot + "/sys/class/kfd/kfd/proc";
  for (const int pid : numbers_in_folder(folder)) {
    const auto bytes = parse_as<uint64_t>(read_line(folder / cat(pid) / cat("vram_", gpu_id)));
    // Every process that opened the driver is listed for every GPU.
    if (bytes && *bytes > 0)
      processes.push_back({.pid = pid, .used_memory_bytes = *bytes});
  }
  return processes;
}

}  // namespace muster
