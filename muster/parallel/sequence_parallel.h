// Sequence parallelism: what stands between layers of tensor_parallel.h, norms and dropout, on this rank's
// part of the tokens alone. Saves the activations that every rank would keep alike.
//
//   auto up = muster::column_parallel(whole_up, tp, {.sequence_dim = 1});
//   auto down = muster::row_parallel(whole_down, tp, {.sequence_dim = 1});
//   x = x + dropout(down(torch::gelu(up(muster::sequence_layer_norm(norm, x, tp)))));  // x: own tokens
//
// A model enters by scatter_to_group (group_functions.h) and leaves by gather_sequence, both along that
// dimension. Any other parameter that is used on tokens of its own has to go through copy_to_group, or each
// rank has a gradient of its own. Source: Korthikanti et al., arXiv:2205.05198.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "muster/comm/process_group.h"

namespace muster {

// norm(x) for this rank's tokens. The gradients of its weight and bias are of all ranks' tokens. Shapes: x
// [..., the norm's]. Collective: in backward.
at::Tensor sequence_layer_norm(const torch::nn::LayerNorm& norm, const at::Tensor& x, ProcessGroup group);

// Dropout whose masks are this rank's own, while the default generators stay alike on all ranks: each forward
// takes one number from the CPU's, and draws by it and the rank. So what restores that generator restores the
// masks: recomputation, and checkpoints.
class SequenceDropoutImpl : public torch::nn::Module {
 public:
  // Throws: invalid_argument for a probability that is not from 0 to 1.
  SequenceDropoutImpl(double probability, const ProcessGroup& group);

  // x itself, when evaluating.
  at::Tensor forward(const at::Tensor& x);

 private:
  double probability_;
  int rank_;
  at::Generator generator_;
};
TORCH_MODULE(SequenceDropout);

}  // namespace muster
