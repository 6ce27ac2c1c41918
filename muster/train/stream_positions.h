// Where every rank is in its part of a stream (data/stream_position.h), as one state of them all.
#pragma once

#include <string>

#include "muster/checkpoint/manifest.h"
#include "muster/comm/process_group.h"
#include "muster/data/stream_position.h"
#include "muster/train/saved_state.h"

namespace muster {

// Shapes: one tensor, [ranks, numbers of a position]. Collective: every rank gets all ranks' positions.
// Throws: failed_precondition, on every rank, where their loaders have different numbers of workers.
SavedState stream_positions(ProcessGroup& group, const StreamPosition& mine);

// This rank's own. `owner` is the part's name, for messages. Throws: failed_precondition, on every rank,
// where another number of ranks has saved it.
StreamPosition own_stream_position(const ProcessGroup& group, const std::string& owner,
                                   const SavedState& state);

// Of all ranks, as a manifest has it: the epoch of the rank that is behind, and the examples of their epochs.
TrainingPosition place_in_streams(const SavedState& state);

}  // namespace muster
