// Making the default process group, for those who start processes themselves; muster::run does it for
// everybody else.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>

#include "muster/comm/init_options.h"
#include "muster/comm/process_group.h"

namespace c10d {
class Store;
}

namespace muster {

// MUSTER_COLLECTIVE_TIMEOUT, or else what is given. Throws: invalid_argument for no time, or none above 0.
std::chrono::milliseconds collective_timeout(std::chrono::milliseconds given);

// Joins all ranks into one group. Collective: over all ranks. Blocking: until all have come or
// `init_timeout`. Throws: invalid_argument (rank out of range, duplicate rank, sizes that differ, unknown
// backend or method), timeout naming the missing ranks, unavailable (no CUDA device, a master that does not
// resolve, a port in use). Source: torch.distributed.init_process_group.
ProcessGroup init_process_group(const InitOptions& options = {});

// The same for those ranks alone that take part, numbered in the order of their ranks (for all, when none
// does). Nothing for the others, which may end at once; only rank 0, where it serves the store, comes back
// when the group has been shut down. Once a store. Collective: over all ranks. Throws: as above.
std::optional<ProcessGroup> init_process_group_of_some(const InitOptions& options, bool takes_part);

// The same over a store that the ranks share already (threads of one process, for instance).
ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                const InitOptions& options = {});

}  // namespace muster
