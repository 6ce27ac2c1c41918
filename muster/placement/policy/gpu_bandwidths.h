// What a host's selected GPUs carry to each other. For the policies that order GPUs by their links.
#pragma once

#include <cstdint>
#include <string>

#include "muster/placement/policy/policy.h"
#include "muster/placement/policy/ring.h"

namespace muster {

// The link between two whole GPUs; null when it is not known, or one is an instance.
const Link* link_between(const PolicyInput& input, const UsableGpu& a, const UsableGpu& b);

// In whole MB/s, 0 where no link is known; of the two directions the slower.
Bandwidths gpu_bandwidths(const PolicyInput& input);

// 25000 → "25 GB/s".
std::string gigabytes(int64_t megabytes);

}  // namespace muster
