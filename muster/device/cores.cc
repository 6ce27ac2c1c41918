// The kernel refuses an affinity mask smaller than its own, whose size is not known beforehand:
// masks twice as large are tried until one is taken.
#include "muster/device/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "muster/base/control_group.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

constexpr int kMostCpus = 1 << 20;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

// Returns the CPUs of a mask of `num_cpus`; nothing when the kernel refuses it, errno says why.
std::optional<Ints> cpus_by_mask_of(int num_cpus) {
  const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(num_cpus));
  const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
  if (sched_getaffinity(0, bytes, set.get()) != 0)
    return std::nullopt;
  Ints cpus;
  for (int cpu = 0; cpu < num_cpus; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes, set.get()))
      cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

Ints usable_cpus() {
  for (int num_cpus = 1024; num_cpus <= kMostCpus; num_cpus *= 2) {
    if (auto cpus = cpus_by_mask_of(num_cpus))
      return std::move(*cpus);
    if (errno != EINVAL)
      break;
  }
  return {};
}

int usable_cores(const std::string& root) {
  const int cores = std::max(int_size(usable_cpus()), 1);
  const auto quota = cpu_quota(root);
  if (!quota || *quota >= cores)
    return cores;
  return std::max(static_cast<int>(std::ceil(*quota)), 1);
}

}  // namespace muster
