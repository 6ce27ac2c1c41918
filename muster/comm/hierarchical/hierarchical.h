// The backend of ranks on several hosts. Gloo has messages and most collectives, but those of every
// training step go through memory inside each host: all_reduce, and where all hosts have equally
// many ranks all_gather and reduce_scatter. Only sums of a host, and values that the other host
// does not have yet, cross the network.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/rank_names.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace muster {

// Makes a backend for the network between `size` ranks, of which this is `rank`.
using NetworkBackend = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)>;

// Collective: over all ranks; `hosts` has the host_identity() of each. Messages call them by
// `names`. The bits of a sum depend on which ranks share a host, and on nothing else. Throws: as
// make_shm and `network`.
c10::intrusive_ptr<c10d::Backend> make_hierarchical(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    const std::vector<std::string>& hosts,
                                                    std::chrono::milliseconds timeout,
                                                    const NetworkBackend& network,
                                                    RankNames names = {});

}  // namespace muster
