// The backend of ranks on several hosts. Gloo has messages and most collectives, but those of every
// training step go through memory inside each host: all_reduce, and where all hosts have equally
// many ranks all_gather and reduce_scatter. Only sums of a host, and values that the other host
// does not have yet, cross the network.
#pragma once

#include <chrono>
#include <functional>

#include "muster/base/clock.h"
#include "muster/base/rank_names.h"
#include "muster/base/strings.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// Makes a backend for the network between `size` ranks, of which this is `rank`.
using NetworkBackend = std::function<BackendPtr(const StorePtr& store, int rank, int size)>;

// Collective: over all ranks; `hosts` has the host_identity() of each. Messages call them by
// `names`. The bits of a sum depend on which ranks share a host, and on nothing else. Throws: as
// make_shm and `network`.
BackendPtr make_hierarchical(const StorePtr& store,
                             int rank,
                             const Strings& hosts,
                             milliseconds timeout,
                             const NetworkBackend& network,
                             RankNames names = {});

}  // namespace muster
