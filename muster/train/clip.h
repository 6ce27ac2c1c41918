// Gradient clipping without waiting for the GPU: by the norm of all gradients together, or by
// value.
//
//   const auto norm = muster::clip_grad_norm(model.parameters(), 1.0);
//
// After a reduced backward every rank has the same gradients and so the same norm, except for
// ignored_parameters: clip those separately. Gradients may be on several devices. Sparse gradients
// are coalesced, and their values count. A parameter that is twice in the list, as a shared weight
// is in LibTorch's net->parameters(), counts once. Source: torch.nn.utils, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"

namespace muster {

// The norm of all gradients as one vector: a scalar on the first one's device, 0 without gradients.
// `norm_type` may be infinity. Does not block.
// Throws: invalid_argument for a norm_type that is not positive; failed_precondition (like
// clip_grad_norm) for sharded gradients (FullySharded, ShardedOptimizer), of which a rank has only
// a part: those classes have their own clip_grad_norm.
at::Tensor grad_norm(const Tensors& parameters, double norm_type = 2);

// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)) and returns the norm before
// clipping. If that norm is infinite, finite gradients become 0 and infinite ones NaN; if it is
// NaN, all become NaN. Check the norm, or use TrainStep. Does not block. Throws: also
// invalid_argument for a negative max_norm.
at::Tensor clip_grad_norm(const Tensors& parameters, double max_norm, double norm_type = 2);

// The second half of clip_grad_norm, for callers that check the norm first.
void clip_grads_with_norm(const Tensors& parameters, double max_norm, const at::Tensor& norm);

// Clamps every gradient value to [-value, value]; NaN stays. Does not block. Throws:
// invalid_argument for a value that is not positive.
void clip_grad_value(const Tensors& parameters, double value);

}  // namespace muster
