// The states of a part that differ between ranks, as one state of them all.
#pragma once

#include <string>

#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"

namespace muster {

// Names are "<rank>/<name>"; tensors are copies on the CPU. Every rank gets the states of all
// ranks, and needs memory for all of them. Collective: yes.
SavedState states_of_ranks(ProcessGroup& group, const SavedState& mine);

// This rank's part of what states_of_ranks returned. `owner` is for messages. Throws:
// failed_precondition if another number of ranks saved it.
SavedState own_state(const ProcessGroup& group, const std::string& owner, const SavedState& all);

// Adds a state as a rank sends it, each name behind `prefix`. For states_of_ranks. Throws:
// invalid_argument when it says that it has more than it has.
void unpack_state(SavedState& all, const std::string& prefix, const std::string& bytes);

}  // namespace muster
