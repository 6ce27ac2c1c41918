// How far the clocks of other hosts are from rank 0's, for a trace of all ranks.
#pragma once

#include "muster/comm/process_group.h"
#include "muster/trace/event_file.h"

namespace muster {

// Corrects the clock of this rank's file of events to rank 0's: on rank 0's host exactly, since its processes
// share a clock; elsewhere by the quickest of several messages there and back, half of whose time is how
// wrong it may be. Collective: yes, by ranks that all trace. `own_unix_ns`: what makes this rank's monotonic
// times Unix times.
void align_clock(ProcessGroup& group, TraceEventFile& events, int64_t own_unix_ns);

}  // namespace muster
