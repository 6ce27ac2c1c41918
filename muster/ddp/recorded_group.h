// The buckets of c10d::Reducer in the rank's activity file and trace, where the backend is PyTorch's own:
// muster's backends write down every call themselves, Gloo and NCCL do not.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "muster/comm/process_group.h"

namespace muster {

// What a Reducer may use in the place of `group`'s own: the same backends. Every all_reduce is written down
// as one of the group "world gradients", and ends when the backend has completed it; with NCCL that is when
// the host goes on. The group's own where no file is open, and for backends that write down theirs.
c10::intrusive_ptr<c10d::ProcessGroup> recorded_group(const ProcessGroup& group);

}  // namespace muster
