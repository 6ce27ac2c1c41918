// What a communication hook remembers (ddp/hooks.h) on all ranks, as one state of them all.
#pragma once

#include <string>

#include "muster/comm/process_group.h"
#include "muster/ddp/hooks.h"
#include "muster/train/saved_state.h"

namespace muster {

// Shapes: of what is each rank's own, [ranks, its shape]: errors take the model's size for each rank, in the
// host's memory and in the file. Collective: every rank gets all ranks' states. Throws: failed_precondition,
// on every rank, where their hooks remember other tensors.
SavedState hook_states(ProcessGroup& group, const HookState& mine);

// This rank's own. Where another number of ranks has saved it, errors that were still to be sent begin anew.
HookState own_hook_state(const ProcessGroup& group, const SavedState& state);

}  // namespace muster
