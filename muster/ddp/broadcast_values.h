// Gives all ranks of a group one rank's values of tensors. For buffers, which running statistics
// change on each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// In one message for each type and device, in the order of `tensors`, which all ranks have. It goes
// through the group's own calls, which find a rank that does something else. Collective: yes.
// Blocking: until they are here.
void broadcast_values(const Tensors& tensors, ProcessGroup& group, int root);

}  // namespace muster
