// Records the buckets of c10d::Reducer in the rank's activity file and trace, for PyTorch's own
// backends: muster's backends record every call themselves, Gloo and NCCL do not. And watches them
// where a GPU does them: the rank that waits there is ended when another does not come.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "muster/comm/process_group.h"

namespace muster {

// A group for the Reducer with the same backends as `group`. Every all_reduce is recorded as a call
// of the group "world gradients", which ends when the backend has completed it (with NCCL, when the
// GPU has done it), and with NCCL it is watched. Returns the group itself for backends that record
// their calls, and without an open file for those of the host.
c10::intrusive_ptr<c10d::ProcessGroup> recorded_group(const ProcessGroup& group);

}  // namespace muster
