// Hosts that nobody has, for benchmarks of very large jobs: 8 GPUs with links, 64 cores.
#pragma once

#include <cstdint>

#include "muster/device/inventory.h"

constexpr int kInventedGpus = 8;
constexpr uint64_t kInventedGpuBytes = uint64_t{80} << 30;

// "node-7" for number 7. Its GPUs have UUIDs of their own.
muster::Host invented_host(int number);
