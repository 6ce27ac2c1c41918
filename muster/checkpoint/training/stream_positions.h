// Every rank's position in its part of a stream (data/stream_position.h), as one state of them all.
#pragma once

#include <string>
#include <vector>

#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/data/stream_position.h"

namespace muster {

// Collective: yes; every rank gets all ranks' positions. Throws: failed_precondition, on every
// rank, if the loaders have different numbers of workers.
SavedState stream_positions(ProcessGroup& group, const StreamPosition& mine);

// Those of all ranks that saved. `owner` is the part's name, for messages. Throws: invalid_argument
// if the state holds something else.
StreamPositions positions_of_ranks(const std::string& owner, const SavedState& state);

// For all ranks, as in a manifest: the epoch of the rank that is furthest behind, and the examples
// of their epochs.
TrainingPosition place_in_streams(const SavedState& state);

}  // namespace muster
