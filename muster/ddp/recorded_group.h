// Records the buckets of c10d::Reducer in the rank's activity file and trace, for PyTorch's own
// backends: muster's backends record every call themselves, Gloo and NCCL do not.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "muster/comm/process_group.h"

namespace muster {

// A group for the Reducer with the same backends as `group`. Every all_reduce is recorded as a call
// of the group "world gradients", which ends when the backend has completed it (with NCCL, when the
// GPU has done it). Returns the group itself if no file is open, and for backends that record their
// calls.
c10::intrusive_ptr<c10d::ProcessGroup> recorded_group(const ProcessGroup& group);

}  // namespace muster
