// What precision.h, clip.h and step.h share about gradients: find them, group them for single
// kernels, look for non-finite values. Knows nothing of models and steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

namespace muster {

// An optimizer's parameters, in its groups' order.
std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

// An optimizer steps twice on what it has twice, as LibTorch's net->parameters() has a weight that
// two layers share. `owner` is who asks and `name_of` gives a parameter's name, for messages.
// Throws: invalid_argument.
void require_each_once(const std::string& owner,
                       const std::vector<at::Tensor>& parameters,
                       const std::function<std::string(const at::Tensor&)>& name_of);

// A parameter without a name: "a parameter of shape [2, 3]".
std::string shape_as_name(const at::Tensor& parameter);

// The gradients that exist, each once, however often its parameter is in the list. A sparse
// gradient is coalesced in place and represented by its values: repeated rows would count twice.
std::vector<at::Tensor> gradient_values(const std::vector<at::Tensor>& parameters);

// Groups by device and type, in the order of PyTorch's own grouping, which affects the last bit of
// a norm.
std::vector<std::vector<at::Tensor>> by_device_and_type(const std::vector<at::Tensor>& tensors);

// Multiplies all by `inverse_scale` (a float scalar) in place. Returns a float scalar on its
// device: 1 if a value was not finite before or after, else 0. Does not block.
at::Tensor multiply_and_find_nonfinite(const std::vector<at::Tensor>& gradients,
                                       const at::Tensor& inverse_scale);

}  // namespace muster
