// Records parameters of which this rank has only a part of the gradient. The classes that shard a model
// (muster/parallel) mark them. A training step checks the mark, because a norm or loss scale of parts alone
// would be silently wrong.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// The mark lasts as long as the tensors.
void mark_divided_gradients(const std::vector<at::Tensor>& parameters);
bool has_divided_gradient(const at::Tensor& parameter);

}  // namespace muster
