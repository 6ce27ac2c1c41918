// Records parameters of which this rank has only a part, or a part of the gradient. The classes
// that shard a model or divide its layers (muster/parallel) mark them. A training step checks the
// marks, because a norm or loss scale of parts alone would be silently wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// A mark lasts as long as the tensor, or until it is taken away as often as it was given.
void mark_divided_gradients(const std::vector<at::Tensor>& parameters);
void unmark_divided_gradients(const std::vector<at::Tensor>& parameters);
bool has_divided_gradient(const at::Tensor& parameter);

// The same for parts of divided layers (tensor parallelism), whose gradients are whole for what the
// rank has.
void mark_layer_parts(const std::vector<at::Tensor>& parameters);
bool is_layer_part(const at::Tensor& parameter);

}  // namespace muster
