// What precision.h, clip.h and step.h do with gradients alike: find them, take them in lots that one kernel
// can do, look for values that are not finite. Knows of no model and no step.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

namespace muster {

// An optimizer's parameters, in its groups' order.
std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

// The gradients that are there. Of a sparse one its values, after it was coalesced in place: rows that came
// twice would count twice.
std::vector<at::Tensor> gradient_values(const std::vector<at::Tensor>& parameters);

// Lots of one device and one type, in the order of PyTorch's own grouping, on which the last bit of a norm
// depends.
std::vector<std::vector<at::Tensor>> by_device_and_type(const std::vector<at::Tensor>& tensors);

// Multiplies all with `inverse_scale` (a float scalar) in place, and returns a float scalar on its device: 1
// where a value was not finite before or after, else 0. Blocking: no.
at::Tensor multiply_and_find_nonfinite(const std::vector<at::Tensor>& gradients,
                                       const at::Tensor& inverse_scale);

}  // namespace muster
