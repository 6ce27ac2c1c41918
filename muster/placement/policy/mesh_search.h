// The best order of devices for a mesh that is too large to try them all. The part of mesh_order.h
// for many devices; a private header.
#pragma once

#include <cstddef>

#include "muster/base/lists.h"
#include "muster/placement/policy/ring.h"

namespace muster {

// As many of the devices as the sizes' product: from rows of the last axis that are cliques of fast
// links, and from 0, 1, 2 …, by changes that improve the order.
Indices search_mesh_order(const Bandwidths& bandwidth, const Ints& sizes);

}  // namespace muster
