// What rank 0 has of a state that other ranks have otherwise, as BatchNorm's running statistics: if rank 0 is
// lost, another rank must have it. Used by Checkpoints alone.
#pragma once

#include "muster/checkpoint/safetensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// Rank 0's tensors that are not the same on every rank, with memory of their own, on all ranks but rank 0,
// where there are none. Only these are sent; the rest is compared by hashes. Collective: yes.
NamedTensors tensors_unlike_rank0(ProcessGroup& group, const NamedTensors& mine);

}  // namespace muster
