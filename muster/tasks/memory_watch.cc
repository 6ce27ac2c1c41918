#include "muster/tasks/memory_watch.h"

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/device/probe.h"
#include "muster/placement/gpu_facts.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kLookAtMemoryEvery{2};

}  // namespace

void MemoryWatch::look() {
  if (!tell_ || host_ < 0 || pool_.inventory().simulated) return;
  if (looked_ && Clock::now() - *looked_ < kLookAtMemoryEvery) return;
  const std::vector<PoolGpu>& gpus = pool_.hosts()[static_cast<size_t>(host_)].gpus;
  try {
    const Inventory now = probe_this_machine({.detail = GpuDetail::full});
    const Host& host = now.hosts[0];
    for (size_t i = 0; i < gpus.size(); ++i) {
      const UsableGpu& device = gpus[i].device;
      if (device.position >= host.gpus.size() ||
          (device.mig >= 0 && static_cast<size_t>(device.mig) >= host.gpus[device.position].mig.size()) ||
          uuid_of(host, device) != gpus[i].uuid)
        continue;
      const uint64_t total = total_memory_bytes(host, device);
      tell_(static_cast<int>(i), total - std::min(total, free_memory_bytes(host, device)));
    }
  } catch (const Error& error) {
    log(LogLevel::debug, cat("the memory of GPUs cannot be looked at: ", error.message()));
  }
  looked_ = Clock::now();
}

}  // namespace muster
