// A host's selected devices by NUMA node and by PCIe switch. For the policies that look at these.
#pragma once

#include <map>
#include <optional>

#include "muster/base/lists.h"
#include "muster/placement/policy/policy.h"

namespace muster {

// NUMA node → places in PolicyInput::gpus, in order. GPUs whose node is not known are together
// under nothing.
std::map<std::optional<int>, Indices> gpus_by_numa_node(const PolicyInput& input);

// For each place of PolicyInput::gpus a number that is the same for GPUs behind one PCIe switch
// (link PIX) and for the instances of one GPU.
Indices switch_of_gpus(const PolicyInput& input);

}  // namespace muster
