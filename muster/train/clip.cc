// Norms and factors are computed as PyTorch's clip_grad_norm_ does, in lots of one device and type,
// and stay on the device: nothing here waits for a GPU.
#include "muster/train/clip.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/optim/parts.h"
#include "muster/train/device_copy.h"
#include "muster/train/gradients.h"

namespace muster {

namespace {

// Throws: invalid_argument with the rule, unless it holds.
void expect_for_clipping(bool holds, const char* call, const char* rule, double value) {
  if (holds)
    return;
  throw invalid_argument(call, ": expected ", rule, ", got ", value, "; 1.0 is a common choice");
}

// Returns the norm over all gradients, on the device of the first: the norm of the tensors' norms.
Tensor norm_of(const Tensors& gradients, double norm_type) {
  if (gradients.empty())
    return at::zeros({});
  Tensors norms;
  for (const auto& lot : by_device_and_type(gradients)) {
    for (const Tensor& norm : at::_foreach_norm(lot, norm_type))
      norms.push_back(copied_to(gradients[0].device(), norm));
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

// Throws: failed_precondition with `rule` if one of the parameters is so.
void refuse_any(const char* call,
                const Tensors& parameters,
                bool (*is_so)(const Tensor&),
                const char* rule) {
  if (any_of(parameters, is_so))
    throw failed_precondition(call, ": expected ", rule);
}

// The norm of sharded gradients would be that of this rank's parts, and another on each rank. The
// ranks of a divided layer would clip what they have alike by different norms.
void expect_whole_parameters(const char* call, const Tensors& parameters) {
  refuse_any(call,
             parameters,
             optim::has_divided_gradient,
             "whole gradients, got sharded gradients, of which each rank has a part; use "
             "clip_grad_norm of the sharded object (FullySharded, ShardedOptimizer)");
  refuse_any(call,
             parameters,
             optim::is_layer_part,
             "whole parameters, got those of divided layers, of which each rank has a part; use "
             "parallel_grad_norm, then clip_grads_with_norm");
}

// Each rank of a pipeline would clip its stages by their own norm. The norm alone changes nothing.
void refuse_stages(const char* call, const Tensors& parameters) {
  refuse_any(call,
             parameters,
             optim::is_stage_parameter,
             "all parameters of a model, got those of this rank's stages of a pipeline; use "
             "pipeline.clip_grad_norm");
}

}  // namespace

Tensor grad_norm(const Tensors& parameters, double norm_type) {
  expect_for_clipping(norm_type > 0, "grad_norm", "a norm_type above 0", norm_type);
  expect_whole_parameters("grad_norm", parameters);
  const NoGradGuard no_grad;
  return norm_of(gradient_values(parameters), norm_type);
}

void clip_grads_with_norm(const Tensors& parameters, double max_norm, const Tensor& norm) {
  expect_for_clipping(max_norm >= 0, "clip_grad_norm", "a max_norm of 0 or more", max_norm);
  const NoGradGuard no_grad;
  // Python computes number / tensor like this. Multiplying by 1 costs less than asking the GPU
  // whether the factor is 1.
  const Tensor factor = (norm + 1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  for (const auto& lot : by_device_and_type(gradient_values(parameters)))
    at::_foreach_mul_(lot, copied_to(lot[0].device(), factor));
}

// The norm is that before the clipping, as PyTorch returns it.
Tensor clip_grad_norm(const Tensors& parameters, double max_norm, double norm_type) {
  expect_for_clipping(norm_type > 0, "clip_grad_norm", "a norm_type above 0", norm_type);
  expect_whole_parameters("clip_grad_norm", parameters);
  refuse_stages("clip_grad_norm", parameters);
  const NoGradGuard no_grad;
  Tensor norm = norm_of(gradient_values(parameters), norm_type);
  clip_grads_with_norm(parameters, max_norm, norm);
  return norm;
}

// The bounds are applied in place, one kernel a lot.
void clip_grad_value(const Tensors& parameters, double value) {
  expect_for_clipping(value > 0, "clip_grad_value", "a value above 0", value);
  const NoGradGuard no_grad;
  for (const auto& lot : by_device_and_type(gradient_values(parameters))) {
    at::_foreach_clamp_min_(lot, -value);
    at::_foreach_clamp_max_(lot, value);
  }
}

}  // namespace muster
