// The memory of a communication hook (ddp/hooks.h) on all ranks, as one state of them all.
#pragma once

#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/hooks.h"

namespace muster {

// Shapes: tensors that differ between ranks become [ranks, their shape]: errors take the model's
// size per rank, in host memory and in the file. Collective: yes; every rank gets all ranks'
// states. Throws: failed_precondition, on every rank, if the hooks remember different tensors.
SavedState hook_states(ProcessGroup& group, const HookState& mine);

// This rank's own state. If another number of ranks saved it, errors still to be sent start anew.
HookState own_hook_state(const ProcessGroup& group, const SavedState& state);

}  // namespace muster
