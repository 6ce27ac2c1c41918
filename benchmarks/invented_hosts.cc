#include "benchmarks/invented_hosts.h"

#include <cstdio>
#include <vector>

#include "muster/base/strings.h"

namespace {

constexpr int kCoresPerHost = 64;

// Two pairs of links of each GPU are faster than the rest, so that the topology policy has work to
// do.
std::vector<std::vector<muster::Link>> links() {
  std::vector<std::vector<muster::Link>> all(kInventedGpus,
                                             std::vector<muster::Link>(kInventedGpus));
  for (int a = 0; a < kInventedGpus; ++a) {
    for (int b = 0; b < kInventedGpus; ++b) {
      muster::Link& link = all[static_cast<size_t>(a)][static_cast<size_t>(b)];
      link = a == b ? muster::Link{muster::LinkKind::self, 0}
                    : muster::Link{muster::LinkKind::nvlink, 1 + (a * b + a + b) % 3};
    }
  }
  return all;
}

}  // namespace

muster::Host invented_host(int number) {
  muster::Host host{
      .name = muster::cat("node-", number), .num_cores = kCoresPerHost, .gpu_links = links()};
  for (int i = 0; i < kCoresPerHost; ++i) {
    host.cores.push_back(
        {.cpus = {i, i + kCoresPerHost}, .numa_node = i / 32, .socket = i / 32, .l3 = i / 8});
  }
  for (int i = 0; i < kInventedGpus; ++i) {
    char uuid[64];
    std::snprintf(
        uuid, sizeof(uuid), "GPU-%08x-0000-4000-8000-%012x", number * kInventedGpus + i, number);
    host.gpus.push_back({.index = {i},
                         .uuid = {uuid},
                         .pci = {muster::cat("0000:0", i, ":00.0")},
                         .model = "NVIDIA H100 80GB HBM3",
                         .memory_total_bytes = kInventedGpuBytes,
                         .memory_free_bytes = kInventedGpuBytes,
                         .compute_capability = "9.0",
                         .numa_node = i / 4,
                         .near_cpus = i < 4 ? "0-31,64-95" : "32-63,96-127"});
  }
  return host;
}
