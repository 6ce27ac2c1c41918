// The conformance suite's table of all types, calls and layouts. Inside of tests/comm.
#pragma once

#include "muster/comm/process_group.h"

namespace muster::testing {

// Calls that move tensors move all types, of any layout: by ProcessGroup, and by c10d's own
// interface.
void every_type_is_moved(ProcessGroup& group);
void every_type_is_moved_by_c10d(ProcessGroup& group);

// Calls that reduce tensors form the right values, or name the type and the operation that it has
// not.
void every_type_is_reduced_or_refused(ProcessGroup& group);

// Tensors that are conjugated or negated only when they are read.
void lazy_tensors(ProcessGroup& group);

}  // namespace muster::testing
