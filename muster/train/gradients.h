// The calls that precision.h, clip.h and step.h share about gradients: they find them, group them
// for single kernels, look for non-finite values. Knows nothing of models and steps.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/checkpoint/training/optimizer_parameters.h"

namespace muster {

// The gradients that exist, each once, however often its parameter is in the list. A sparse
// gradient is coalesced in place and represented by its values: repeated rows would count twice.
Tensors gradient_values(const Tensors& parameters);

// Groups by device and type, in the order of PyTorch's own grouping, which affects the last bit of
// a norm.
TensorLists by_device_and_type(const Tensors& tensors);

// Multiplies all by a scalar in place. Does not block.
void multiply(const Tensors& gradients, const Tensor& factor);

// Multiplies all by `inverse_scale` (a float scalar) in place. Returns a float scalar on its
// device: 1 if a value was not finite before or after, else 0. Does not block.
Tensor multiply_and_find_nonfinite(const Tensors& gradients, const Tensor& inverse_scale);

}  // namespace muster
