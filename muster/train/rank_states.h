// The state of a part that has another one on each rank, as one state of them all.
#pragma once

#include <string>

#include "muster/comm/process_group.h"
#include "muster/train/saved_state.h"

namespace muster {

// Names are "<rank>/<name>"; tensors are copies on the CPU. Collective: yes; every rank gets all of it, which
// is what all ranks' states take in memory together.
SavedState states_of_ranks(ProcessGroup& group, const SavedState& mine);

// This rank's part of what states_of_ranks gave. `owner` is for messages. Throws: failed_precondition where
// another number of ranks has saved it.
SavedState own_state(const ProcessGroup& group, const std::string& owner, const SavedState& all);

}  // namespace muster
