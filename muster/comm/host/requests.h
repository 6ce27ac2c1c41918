// Collectives with a part for every rank: their tensors are checked here, and become requests.
// Inside of comm/host.
#pragma once

#include "muster/base/tensors.h"
#include "muster/comm/host/call.h"

namespace muster {

// All throw: invalid_argument where lists, types or lengths are not those of `ranks` ranks.

const Tensors& list_for_all(const HostCall& call, const TensorLists& lists, int ranks);

// The i-th tensor that comes from every rank.
Tensors column(const HostCall& call, const TensorLists& lists, size_t i, int ranks);

// `outputs` and `inputs` have one tensor a rank, or none where only a root has them.
Request gather_of(HostCall& call, shm::Kind kind, const Tensors& outputs, const Tensor& input);
Request scatter_of(HostCall& call, shm::Kind kind, const Tensor& output, const Tensors& inputs);

// The ranks' parts lie in one tensor here.
Request all_gather_into(HostCall& call, const Tensor& output, const Tensor& input, int ranks);
Request reduce_scatter_into(
    HostCall& call, const Tensor& output, const Tensor& input, const c10d::ReduceOp& op, int ranks);

}  // namespace muster
