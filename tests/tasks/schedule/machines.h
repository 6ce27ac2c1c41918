// Machines and tasks for the tests of tasks/.
#pragma once

#include <string>
#include <vector>

#include "muster/tasks/schedule/device_pool.h"

namespace muster::tasks_test {

inline constexpr uint64_t kGpuBytes = uint64_t{80} << 30;

// A host of equal GPUs, joined in pairs (0-1, 2-3, …) by faster links than the others.
inline Host host_with(int gpus, int cpus = 8, const std::string& name = "box") {
  Host host{.name = name, .num_cores = cpus};
  for (int i = 0; i < gpus; ++i) {
    host.gpus.push_back({.index = {i},
                         .uuid = {"GPU-0000000" + std::to_string(i) + "-0000-4000-8000-" + name},
                         .model = "NVIDIA A100-SXM4-80GB",
                         .memory_total_bytes = kGpuBytes,
                         .memory_free_bytes = kGpuBytes,
                         .compute_capability = "8.0",
                         .numa_node = i / 4});
  }
  const auto count = static_cast<size_t>(gpus);
  host.gpu_links.assign(count, std::vector<Link>(count, {LinkKind::nvlink, 1}));
  for (size_t i = 0; i < count; ++i) {
    host.gpu_links[i][i] = {LinkKind::self, 0};
    if ((i ^ 1) < count)
      host.gpu_links[i][i ^ 1] = {LinkKind::nvlink, 12};
  }
  return host;
}

inline DevicePool pool_of(int gpus, int cpus = 8) {
  return DevicePool({.source = "test", .simulated = true, .hosts = {host_with(gpus, cpus)}});
}

inline Task task_of(const std::string& name,
                    std::vector<TaskNeed> needs,
                    std::vector<std::string> after = {}) {
  return {.name = name, .argv = {"true"}, .needs = std::move(needs), .after = std::move(after)};
}

}  // namespace muster::tasks_test
