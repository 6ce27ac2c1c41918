#include "muster/device/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "muster/base/control_group.h"

namespace muster {
namespace {

int cores_by_affinity() {
  // The kernel refuses a mask smaller than its own, whose size is not known beforehand.
  for (int num_cpus = 1024; num_cpus <= (1 << 20); num_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const int cores = ok ? CPU_COUNT_S(bytes, set) : 0;
    const bool too_small = !ok && errno == EINVAL;
    CPU_FREE(set);
    if (ok) return cores;
    if (!too_small) break;
  }
  return 1;
}

}  // namespace

int usable_cores(const std::string& root) {
  const int cores = cores_by_affinity();
  const auto quota = cpu_quota(root);
  if (!quota || *quota >= cores) return std::max(cores, 1);
  return std::max(static_cast<int>(std::ceil(*quota)), 1);
}

}  // namespace muster
