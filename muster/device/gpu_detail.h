// How much a probe of GPUs asks the driver for: a launcher waits for the answer, so it asks for
// little.
#pragma once

namespace muster {

enum class GpuDetail {
  placement,  // identity, memory, MIG, compute capability, slot, NUMA node and near CPUs, health
  processes,  // also compute processes
  full,       // also utilisation, temperature and power
};

}  // namespace muster
