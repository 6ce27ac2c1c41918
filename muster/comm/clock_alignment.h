// A trace of all ranks needs one clock: other hosts' clocks are corrected to rank 0's.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/trace/activity.h"

namespace muster {

// Corrects the clock of this rank's file of events to rank 0's: on rank 0's host exactly, since its
// processes share a clock; elsewhere by the quickest of several messages there and back, half of
// whose time is how wrong it may be. `activity`: this rank's; without a file of events, or null,
// the rank only takes part. Collective: yes.
void align_clock(ProcessGroup& group, const Activity* activity);

}  // namespace muster
