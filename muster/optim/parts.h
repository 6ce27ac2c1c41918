// Records of which tensors a rank has only a part, or a part of the gradient. The classes that
// shard a model or divide its layers (muster/parallel) mark them; optimizers and the training step
// look, because what goes by a shape or by the norm of all gradients would be silently wrong.
// A mark lasts as long as the tensor, or until it is taken away as often as it was given.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::optim {

// Flat parts of parameters, whose shape is not the parameter's.
void record_parts(const std::vector<at::Tensor>& parts);
bool is_part(const at::Tensor& tensor);

// Parameters, or parts of them, of whose gradient this rank has a part.
void mark_divided_gradients(const std::vector<at::Tensor>& parameters);
void unmark_divided_gradients(const std::vector<at::Tensor>& parameters);
bool has_divided_gradient(const at::Tensor& parameter);

// Parts of divided layers (tensor parallelism), whose gradients are whole for what the rank has.
void mark_layer_parts(const std::vector<at::Tensor>& parameters);
bool is_layer_part(const at::Tensor& parameter);

}  // namespace muster::optim
