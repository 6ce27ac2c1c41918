// The device that a rank computes on, as LibTorch names it (launch/assigned_device.h).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/torch_names.h"
#include "muster/launch/assigned_device.h"

namespace muster {

struct RankDevice {
  Device device = kCPU;
  RankPlan assignment;
  std::optional<int> local_world_size{};  // these three: as AssignedDevice's
  MeshShape mesh{};
  Int64s batch_shares{};
};

// LibTorch's device for the GPU with this ordinal among those that the process sees.
inline Device gpu_device(int ordinal) {
  return {kCUDA, static_cast<c10::DeviceIndex>(ordinal)};
}

// As assigned_cpu, assigned_device and assigned_by_local_rank.
RankDevice cpu_of_rank(const RankEnv& env, const std::string& why);
std::optional<RankDevice> device_of_rank(const RankEnv& env, Surplus surplus);
std::optional<RankDevice> device_by_local_rank(const RankEnv& env,
                                               const Inventory& machine,
                                               const VisibilityMasks& masks,
                                               Surplus surplus);

}  // namespace muster
