// Reckons what is to be reserved of a host for a task that waits, and whether others are in its
// way. Pure. It asks the pool, which knows nothing of reservations.
#pragma once

#include <optional>

#include "muster/base/lists.h"
#include "muster/tasks/schedule/device_pool.h"

namespace muster {

struct Claim {
  int host = 0;
  Ints gpus{};  // places in PoolHost::gpus
  int cpus = 0;
  int missing_gpus = 0;  // that it still lacks there
  int missing_cpus = 0;
};

// Finds what has to be reserved of the host so that the need is met there as early as can be,
// beside what is reserved already: the GPUs it would get if there are enough, else all that will
// do, since who knows which is freed first; and its CPUs. Nothing when the host could not meet it
// though all tasks of the run had ended.
std::optional<Claim> claim_on(const DevicePool& pool,
                              int host,
                              const TaskNeed& need,
                              const AllowedGpus& allowed,
                              const Reserved& reserved);

// Adds the claim to what is reserved.
void reserve(const DevicePool& pool, const Claim& claim, Reserved& reserved);

// Whether anything of the GPUs, or of the CPUs, is neither taken nor reserved.
bool has_free_gpu(const DevicePool& pool, const Reserved& reserved);
bool has_free_cpu(const DevicePool& pool, const Reserved& reserved);

// Whether a task that is there could be in the need's way: it has a GPU that would do, or CPUs that
// count.
bool in_the_way(const DevicePool& pool,
                const Allocation& where,
                const TaskNeed& need,
                const AllowedGpus& allowed);

}  // namespace muster
