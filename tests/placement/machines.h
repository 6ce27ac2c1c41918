// Machines that the tests of placement/ plan on.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "muster/device/inventory.h"

namespace muster {

inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// UUIDs differ by host and GPU: "GPU-0a030000-…" is GPU 3 of host 10.
inline std::string test_uuid(int host, int gpu) {
  char text[64];
  std::snprintf(text,
                sizeof(text),
                "GPU-%02x%02x%04x-0000-4000-8000-%012x",
                host & 0xff,
                gpu,
                host >> 8,
                host);
  return text;
}

inline Host gpu_host(int number, int num_gpus, const std::string& model = "Test GPU") {
  Host host;
  host.name = "n" + std::to_string(number);
  host.num_cores = 8;
  for (int i = 0; i < num_gpus; ++i) {
    Gpu gpu;
    gpu.index.value = i;
    gpu.uuid.value = test_uuid(number, i);
    gpu.model = model;
    host.gpus.push_back(gpu);
  }
  if (num_gpus == 0)
    host.gpu_note = "no driver";
  return host;
}

// A GPU of 80 GiB for each.
inline Host host_with_free(const std::vector<uint64_t>& free_gib) {
  Host host = gpu_host(0, static_cast<int>(free_gib.size()));
  for (size_t i = 0; i < free_gib.size(); ++i) {
    host.gpus[i].memory_total_bytes = 80 * kGiB;
    host.gpus[i].memory_free_bytes = free_gib[i] * kGiB;
  }
  return host;
}

// One host for each count of GPUs.
inline Inventory machine(const std::vector<int>& gpu_counts) {
  Inventory inventory{.source = "test", .simulated = false, .hosts = {}};
  for (size_t i = 0; i < gpu_counts.size(); ++i) {
    inventory.hosts.push_back(gpu_host(static_cast<int>(i), gpu_counts[i]));
  }
  return inventory;
}

}  // namespace muster
