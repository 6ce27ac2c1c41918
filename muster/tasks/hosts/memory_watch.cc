// The machine is probed again, and what of each GPU is not free is taken for other programs'. That
// holds only for GPUs that no task of the run has; the others are left as they were.
#include "muster/tasks/hosts/memory_watch.h"

#include <algorithm>
#include <chrono>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"
#include "muster/device/probe.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kLookAtMemoryEvery{2};

// Whether the host has a GPU at the device's position, and the device's instance of it.
bool is_there(const UsableGpu& device, const Host& host) {
  if (device.position >= host.gpus.size())
    return false;
  return device.mig < std::ssize(host.gpus[device.position].mig);  // -1: the whole GPU
}

}  // namespace

// A probe costs time, so that it is made only where it can tell something.
void MemoryWatch::look(const IntSet& taken) {
  if (!tell_ || host_ < 0 || pool_.inventory().simulated)
    return;
  if (looked_ && Clock::now() - *looked_ < kLookAtMemoryEvery)
    return;
  const Ints free = gpus_without(taken);
  if (free.empty())
    return;
  try {
    const Inventory now = probe_this_machine({.detail = GpuDetail::placement});
    for (const int gpu : free)
      tell_of(gpu, now.hosts[0]);
  } catch (const Error& error) {
    log_debug("cannot see how much memory the GPUs have free: ", error.message());
  }
  looked_ = Clock::now();
}

// The pool's GPUs of which no task has a part, nor another instance of the same GPU.
Ints MemoryWatch::gpus_without(const IntSet& taken) const {
  const PoolGpus& gpus = pool_.hosts()[host_].gpus;
  IndexSet positions;
  for (const int gpu : taken)
    positions.insert(gpus[gpu].device.position);
  return filtered_indices(int_size(gpus),
                          [&](int g) { return !positions.contains(gpus[g].device.position); });
}

// The host may have changed since the pool was made: a GPU that is not where it was is passed over.
void MemoryWatch::tell_of(int gpu, const Host& host) const {
  const PoolGpu& it = pool_.hosts()[host_].gpus[gpu];
  const UsableGpu& device = it.device;
  if (!is_there(device, host) || uuid_of(host, device) != it.uuid)
    return;
  const uint64_t total = total_memory_bytes(host, device);
  tell_(gpu, total - std::min(total, free_memory_bytes(host, device)));
}

}  // namespace muster
