// All that is known of one usable device, be it a whole GPU or a MIG instance: the difference is
// made here and nowhere else. For the selection, the policies and the planner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/device/inventory.h"
#include "muster/placement/selection/usable_gpus.h"

namespace muster {

// UUIDs are shown by their first characters: "GPU-" or "MIG-" and eight digits.
inline constexpr size_t kShortUuid = 12;

const Gpu& gpu_of(const Host& host, const UsableGpu& device);

// The GPU's NUMA node. Most virtual machines and single-socket machines name none for their
// devices: then it is the node of all the host's cores, where they are on one.
std::optional<int> numa_node_of(const Host& host, const Gpu& gpu);

const GpuUuid& uuid_of(const Host& host, const UsableGpu& device);

// As CUDA names it: "NVIDIA H100 80GB HBM3"; an instance: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
std::string model_of(const Host& host, const UsableGpu& device);

// "GPU 3", "MIG-8f3c0a12 of GPU 3", for reasons and errors.
std::string label_of(const Host& host, const UsableGpu& device);

// Whether the driver, or the file, tells how much memory it has. It does not where a GPU has none
// of its own (GB10).
bool knows_memory(const Host& host, const UsableGpu& device);

// 0 where that is not known; ask `knows_memory` before that is taken for little.
uint64_t total_memory_bytes(const Host& host, const UsableGpu& device);

// Of an instance this is what is free at least: its memory less all that is used on its GPU, since
// who uses which instance is not known.
uint64_t free_memory_bytes(const Host& host, const UsableGpu& device);

// "20.0 GiB", "not known".
std::string free_memory_text(const Host& host, const UsableGpu& device);

// How much a GPU's other users take of it, the smaller the better: processes, then utilisation,
// then memory. An instance has its GPU's.
struct GpuLoad {
  size_t num_processes = 0;
  int utilization_percent = 0;
  uint64_t used_memory_bytes = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): it takes <=> for one
  auto operator<=>(const GpuLoad&) const = default;
};
GpuLoad load_of(const Host& host, const UsableGpu& device);
// All that loads are compared by, where it is not 0: "1 process of others, 35% busy, 3.0 GiB used".
std::string load_text(const GpuLoad& load);

// "NUMA node 0, 2 processes of others".
std::string node_and_load_text(const Host& host, const UsableGpu& device);

// "NUMA node 1" or "NUMA node not known".
std::string numa_label(const std::optional<int>& node);

// Whether so much used of a GPU's memory is no more than a driver or a desktop takes: 256 MiB, or
// 2 % of it all when that is more.
bool is_little_memory(uint64_t used, uint64_t total);

// No compute process, and little memory used.
bool is_idle(const Host& host, const UsableGpu& device);

}  // namespace muster
