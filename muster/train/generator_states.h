// LibTorch's random generators of all ranks, so that dropout goes on as it would have.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/train/saved_state.h"

namespace muster {

// Collective: every rank gets all ranks' states.
SavedState generator_states(ProcessGroup& group);

// Each rank takes its own; one that had none then begins with a seed of its own.
void load_generator_states(const ProcessGroup& group, const SavedState& state);

}  // namespace muster
