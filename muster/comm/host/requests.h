// Collectives with a part for every rank: their tensors are checked here, and become requests.
// Inside of comm/host.
#pragma once

#include <vector>

#include "muster/comm/host/call.h"

namespace muster {

// All throw: invalid_argument where lists, types or lengths are not those of `ranks` ranks.

const std::vector<at::Tensor>& list_for_all(const HostCall& call,
                                            const std::vector<std::vector<at::Tensor>>& lists,
                                            int ranks);

// The i-th tensor that comes from every rank.
std::vector<at::Tensor> column(const HostCall& call,
                               const std::vector<std::vector<at::Tensor>>& lists,
                               size_t i,
                               int ranks);

// `outputs` and `inputs` have one tensor a rank.
shm::Request all_gather_of(HostCall& call,
                           const std::vector<at::Tensor>& outputs,
                           const at::Tensor& input);
shm::Request reduce_scatter_of(HostCall& call,
                               const at::Tensor& output,
                               const std::vector<at::Tensor>& inputs,
                               const c10d::ReduceOp& op);

// The ranks' parts lie in one tensor here.
shm::Request all_gather_into(HostCall& call,
                             const at::Tensor& output,
                             const at::Tensor& input,
                             int ranks);
shm::Request reduce_scatter_into(HostCall& call,
                                 const at::Tensor& output,
                                 const at::Tensor& input,
                                 const c10d::ReduceOp& op,
                                 int ranks);

}  // namespace muster
