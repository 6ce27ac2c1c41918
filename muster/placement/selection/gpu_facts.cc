// A MIG instance has its own UUID, profile and memory; everything else it shares with its GPU.
#include "muster/placement/selection/gpu_facts.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"

namespace muster {
namespace {

constexpr uint64_t kIdleBytes = uint64_t{256} << 20;
constexpr uint64_t kIdleShare = 50;  // one fiftieth

// The device must be an instance.
const MigInstance& instance_of(const Host& host, const UsableGpu& device) {
  return host.gpus[device.position].mig[device.mig];
}

}  // namespace

const Gpu& gpu_of(const Host& host, const UsableGpu& device) {
  return host.gpus[device.position];
}

std::string numa_label(const std::optional<int>& node) {
  return node ? cat("NUMA node ", *node) : "NUMA node not known";
}

// Without cores nothing says that there is only one node.
std::optional<int> numa_node_of(const Host& host, const Gpu& gpu) {
  if (gpu.numa_node || host.cores.empty())
    return gpu.numa_node;
  const int first = host.cores[0].numa_node;
  const bool only =
      all_of(host.cores, [&](const CpuCore& core) { return core.numa_node == first; });
  return only ? std::optional(first) : std::nullopt;
}

const GpuUuid& uuid_of(const Host& host, const UsableGpu& device) {
  return device.is_instance() ? instance_of(host, device).uuid : gpu_of(host, device).uuid;
}

std::string model_of(const Host& host, const UsableGpu& device) {
  const std::string& model = gpu_of(host, device).model;
  return device.is_instance() ? cat(model, " MIG ", instance_of(host, device).profile) : model;
}

std::string label_of(const Host& host, const UsableGpu& device) {
  const auto gpu = cat("GPU ", gpu_of(host, device).index.value);
  if (!device.is_instance())
    return gpu;
  return cat(uuid_of(host, device).value.substr(0, kShortUuid), " of ", gpu);
}

bool knows_memory(const Host& host, const UsableGpu& device) {
  return total_memory_bytes(host, device) > 0;
}

uint64_t total_memory_bytes(const Host& host, const UsableGpu& device) {
  return device.is_instance() ? instance_of(host, device).memory_total_bytes
                              : gpu_of(host, device).memory_total_bytes;
}

// All that is used on the GPU may be used by this instance.
uint64_t free_memory_bytes(const Host& host, const UsableGpu& device) {
  const Gpu& gpu = gpu_of(host, device);
  if (!device.is_instance())
    return gpu.memory_free_bytes;
  const uint64_t total = total_memory_bytes(host, device);
  return total - std::min(total, gpu.memory_used_bytes());
}

std::string free_memory_text(const Host& host, const UsableGpu& device) {
  return knows_memory(host, device) ? format_bytes(free_memory_bytes(host, device)) : "not known";
}

// An instance is as loaded as its whole GPU.
GpuLoad load_of(const Host& host, const UsableGpu& device) {
  const Gpu& gpu = gpu_of(host, device);
  return {gpu.processes.size(), gpu.utilization_percent.value_or(0), gpu.memory_used_bytes()};
}

std::string load_text(const GpuLoad& load) {
  auto text =
      cat(load.num_processes, word_for(load.num_processes, " process", " processes"), " of others");
  if (load.utilization_percent > 0)
    text += cat(", ", load.utilization_percent, "% busy");
  if (load.used_memory_bytes > 0)
    text += cat(", ", format_bytes(load.used_memory_bytes), " used");
  return text;
}

std::string node_and_load_text(const Host& host, const UsableGpu& device) {
  return cat(numa_label(gpu_of(host, device).numa_node), ", ", load_text(load_of(host, device)));
}

bool is_little_memory(uint64_t used, uint64_t total) {
  return used <= std::max(kIdleBytes, total / kIdleShare);
}

// Compute processes of other users may be hidden; the memory that they use is not.
bool is_idle(const Host& host, const UsableGpu& device) {
  const Gpu& gpu = gpu_of(host, device);
  return gpu.processes.empty() && is_little_memory(gpu.memory_used_bytes(), gpu.memory_total_bytes);
}

}  // namespace muster
