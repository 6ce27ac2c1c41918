// Makes the default process group, for callers that start processes themselves. muster::run does it
// for everyone else.
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

// Returns MUSTER_COLLECTIVE_TIMEOUT if set, else `given`. Throws: invalid_argument for a malformed
// or non-positive time.
std::chrono::milliseconds collective_timeout(std::chrono::milliseconds given);

// Joins all ranks into one group.
// Collective: over all ranks.
// Blocking: until all ranks have joined, at most `init_timeout`.
// Throws: invalid_argument (rank out of range, duplicate rank, differing sizes, unknown backend or
// method), timeout naming the missing ranks, unavailable (no CUDA device, unresolvable master, port
// in use). Source: torch.distributed.init_process_group.
ProcessGroup init_process_group(const InitOptions& options = {});

// Joins only the ranks that take part, renumbered in rank order (or all ranks, if none takes part).
// Returns nothing on the others, which may end at once; but a rank 0 that serves the store returns
// only after the group has been shut down. Call it once per store. Collective: over all ranks.
// Throws: as above.
std::optional<ProcessGroup> init_process_group_of_some(const InitOptions& options, bool takes_part);

// Joins over a store that the ranks already share (threads of one process, for instance).
ProcessGroup init_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                int rank,
                                int world_size,
                                const InitOptions& options = {});

}  // namespace muster
