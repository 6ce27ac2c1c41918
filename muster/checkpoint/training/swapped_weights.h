// Records the weights in whose memory averages lie until the end of a swap. Ema notes them, and
// Checkpoints does not save them as those of the training, which would go on from the averages.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"

namespace muster {

// `owner` is whoever has swapped them, and forgets them again.
void note_swapped(const void* owner, const Tensors& weights);
void forget_swapped(const void* owner);
// Whether the tensor has memory of such weights.
bool is_swapped(const Tensor& tensor);

}  // namespace muster
