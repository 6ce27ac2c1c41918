#include "muster/tasks/hosts/memory_watch.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kLookAtMemoryEvery{2};

}  // namespace

void MemoryWatch::look(const std::set<int>& taken) {
  if (!tell_ || host_ < 0 || pool_.inventory().simulated)
    return;
  if (looked_ && Clock::now() - *looked_ < kLookAtMemoryEvery)
    return;
  const std::vector<int> free = gpus_without(taken);
  if (free.empty())
    return;
  try {
    const Inventory now = probe_this_machine({.detail = GpuDetail::placement});
    for (const int gpu : free)
      tell_of(gpu, now.hosts[0]);
  } catch (const Error& error) {
    log(LogLevel::debug, cat("cannot see how much memory the GPUs have free: ", error.message()));
  }
  looked_ = Clock::now();
}

// Those of the pool of which no task has a part, nor of another instance of the same GPU.
std::vector<int> MemoryWatch::gpus_without(const std::set<int>& taken) const {
  const std::vector<PoolGpu>& gpus = pool_.hosts()[host_].gpus;
  std::set<size_t> positions;
  for (const int gpu : taken)
    positions.insert(gpus[gpu].device.position);
  std::vector<int> free;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (!positions.contains(gpus[i].device.position))
      free.push_back(static_cast<int>(i));
  }
  return free;
}

void MemoryWatch::tell_of(int gpu, const Host& host) const {
  const PoolGpu& it = pool_.hosts()[host_].gpus[gpu];
  const UsableGpu& device = it.device;
  if (device.position >= host.gpus.size() ||
      (device.mig >= 0 &&
       static_cast<size_t>(device.mig) >= host.gpus[device.position].mig.size()) ||
      uuid_of(host, device) != it.uuid)
    return;
  const uint64_t total = total_memory_bytes(host, device);
  tell_(gpu, total - std::min(total, free_memory_bytes(host, device)));
}

}  // namespace muster
