// KFD's view of a machine: the numbered nodes (CPUs and GPUs) of AMD's compute driver, and the
// links between them, under /sys/class/kfd. For amd.cc alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

using KfdProperties = std::map<std::string, uint64_t>;  // by name

struct KfdLink {
  int to_node = 0;
  bool xgmi = false;
  int count = 0;  // of xGMI links; 0: none joins the two directly
};

struct KfdGpu {
  int node = 0;
  uint64_t gpu_id = 0;  // KFD's own, in the names of its files
  KfdProperties properties{};
  PciAddress pci{};
  uint64_t memory_bytes = 0;
  std::vector<KfdLink> links{};
};

// Whether the driver is loaded.
bool has_kfd(const std::string& sysroot);

// The GPUs that this process may see, in the order of their nodes.
std::vector<KfdGpu> read_kfd_gpus(const std::string& sysroot, bool links);

// The processes that have memory on the GPU with `gpu_id`, and how much.
std::vector<GpuProcess> read_kfd_processes(const std::string& sysroot, uint64_t gpu_id);

}  // namespace muster
