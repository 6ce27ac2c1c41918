#include "muster/device/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "muster/base/control_group.h"

namespace muster {
std::vector<int> usable_cpus() {
  // The kernel refuses a mask smaller than its own, whose size is not known beforehand.
  for (size_t num_cpus = 1024; num_cpus <= (1U << 20U); num_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !ok && errno == EINVAL;
    std::vector<int> cpus;
    for (size_t cpu = 0; ok && cpu < num_cpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set))
        cpus.push_back(static_cast<int>(cpu));
    }
    CPU_FREE(set);
    if (ok)
      return cpus;
    if (!too_small)
      break;
  }
  return {};
}

int usable_cores(const std::string& root) {
  const int cores = static_cast<int>(usable_cpus().size());
  const auto quota = cpu_quota(root);
  if (!quota || *quota >= cores)
    return std::max(cores, 1);
  return std::max(static_cast<int>(std::ceil(*quota)), 1);
}

}  // namespace muster
