// The states of LibTorch's random generators on all ranks, so that dropout continues as it would
// have.
#pragma once

#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"

namespace muster {

// Collective: yes; every rank gets all ranks' states.
SavedState generator_states(ProcessGroup& group);

// Each rank loads its own state; one without a saved state starts with its own seed.
void load_generator_states(const ProcessGroup& group, const SavedState& state);

}  // namespace muster
