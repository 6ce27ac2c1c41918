// Which parameters have gradients of which this rank has a part only. What shards a model says it
// (muster/parallel); a training step asks, since a norm or a loss scale of parts alone would be wrong in
// silence.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

// For as long as the tensors live. `ranks`: over so many they are divided.
void mark_divided_gradients(const std::vector<at::Tensor>& parameters, int ranks);
// Over how many ranks a parameter's gradient is divided; 0: it is whole.
int ranks_of_gradient(const at::Tensor& parameter);
inline bool has_divided_gradient(const at::Tensor& parameter) {
  return ranks_of_gradient(parameter) > 0;
}

}  // namespace muster
