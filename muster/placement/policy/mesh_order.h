// The best order of devices for a grid of ranks: neighbours along the last axis get the best links,
// then those along the axis before it, and so on. Pure numbers; called by mesh.cc, knows nothing of
// GPUs. A private header.
#pragma once

#include <cstddef>
#include <vector>

#include "muster/base/lists.h"
#include "muster/placement/policy/ring.h"

namespace muster {

inline constexpr size_t kMaxExactMesh = 8;

// As many of the n devices as the sizes' product, in the best order: compared by the last axis'
// slowest link, then by the sum of its links, then by the axis before. Exact for n ≤ kMaxExactMesh,
// and there of several best orders the first in alphabetical order; for more devices a search
// (mesh_search.h) that is never worse than 0, 1, 2 …, and that no bound holds to the best.
Indices best_mesh_order(const Bandwidths& bandwidth, const Ints& sizes);

}  // namespace muster
