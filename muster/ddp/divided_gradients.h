// Which parameters have gradients of which this rank has a part only. What shards a model says it
// (muster/parallel); a training step asks, since a norm or a loss scale of parts alone would be wrong in
// silence.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// For as long as the tensors live.
void mark_divided_gradients(const std::vector<at::Tensor>& parameters);
bool has_divided_gradient(const at::Tensor& parameter);

}  // namespace muster
