// Gradient clipping without waiting for the GPU: by the norm of all gradients together, or value by value.
//
//   const auto norm = muster::clip_grad_norm(model.parameters(), 1.0);
//
// After a reduced backward every rank has the same gradients and so the same norm, but for
// ignored_parameters: clip those by themselves. Gradients may lie on several devices. Sparse gradients are
// coalesced, and their values count. Source: torch.nn.utils, whose bits these are.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// The norm of all gradients as of one vector: a scalar on the first one's device, 0 where there is none.
// `norm_type` may be infinity. Blocking: no. Throws: invalid_argument for a norm_type that is not above 0;
// failed_precondition, as clip_grad_norm, for sharded gradients (FullySharded, ShardedOptimizer), of which a
// rank has a part: those have a clip_grad_norm of their own.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2);

// Multiplies all gradients with min(1, max_norm / (norm + 1e-6)) and returns the norm that they had. Where
// that is an infinity, finite gradients become 0 and infinite ones NaN; where it is NaN, all become NaN: look
// at the norm, or leave it to TrainStep. Blocking: no. Throws: invalid_argument also for a max_norm below 0.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2);

// The second half of clip_grad_norm, for those who look at the norm first.
void clip_grads_with_norm(const std::vector<at::Tensor>& parameters, double max_norm, const at::Tensor& norm);

// Brings every value of the gradients into [-value, value]; NaN stays. Blocking: no. Throws: invalid_argument
// for a value that is not above 0.
void clip_grad_value(const std::vector<at::Tensor>& parameters, double value);

}  // namespace muster
