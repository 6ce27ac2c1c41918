// Rank 0's tensors that differ on other ranks, such as BatchNorm's running statistics: if rank 0 is
// lost, another rank must have them. Used only by Checkpoints.
#pragma once

#include "muster/checkpoint/safetensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// Copies of rank 0's tensors that are not equal on every rank, on all ranks except rank 0, which
// gets none. Only these are sent; hashes compare the rest. Collective: yes.
NamedTensors tensors_unlike_rank0(ProcessGroup& group, const NamedTensors& mine);

}  // namespace muster
