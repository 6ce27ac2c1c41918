// Ranks that a policy has put on one GPU: whether they may share it, and whether its memory is
// enough for all of them. A private header of the planner.
#pragma once

#include <map>
#include <utility>

#include "muster/base/lists.h"
#include "muster/placement/policy/policy.h"

namespace muster {

// A device of PolicyInput::host: a GPU (Host::gpus), or one of its instances. Ranks on two
// instances of one GPU do not share a device.
using DeviceKey = std::pair<size_t, int>;

inline DeviceKey device_key(const UsableGpu& gpu) {
  return {gpu.position, gpu.mig};
}

// The local ranks on each device.
using Sharers = std::map<DeviceKey, Ints>;

Sharers sharers_of(const PolicyChoices& choices);

// Throws: invalid_argument, which names the first GPU of several ranks, without --surplus share.
void check_sharing(const Policy& policy, const PolicyInput& input, const Sharers& sharers);

// Throws: invalid_argument when a rank gets less free memory than it said it needs.
void check_rank_memory(const Policy& policy, const PolicyInput& input, const Sharers& sharers);

}  // namespace muster
