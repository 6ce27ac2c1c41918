// Sequence parallelism: the operations between layers of tensor_parallel.h, norms and dropout, on
// this rank's part of the tokens only. Saves activations that every rank would otherwise duplicate.
//
//   auto up = muster::column_parallel(whole_up, tp, {.sequence_dim = 1});
//   auto down = muster::row_parallel(whole_down, tp, {.sequence_dim = 1});
//   // x: own tokens
//   x = x + dropout(down(torch::gelu(up(muster::sequence_layer_norm(norm, x, tp)))));
//
// A model enters by scatter_to_group (group_functions.h) and leaves by gather_sequence, both along
// that dimension. Any other parameter that is applied only to a rank's own tokens must go through
// copy_to_group, or its gradients will differ between ranks. Source: Korthikanti et al.,
// arXiv:2205.05198.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "muster/comm/process_group.h"

namespace muster {

// norm(x) for this rank's tokens; the gradients of its weight and bias cover all ranks' tokens.
// Shapes: x [..., the norm's]. Collective: in backward.
at::Tensor sequence_layer_norm(const torch::nn::LayerNorm& norm,
                               const at::Tensor& x,
                               ProcessGroup group);

// Dropout with different masks on each rank, while the default generators stay the same on all.
// Each forward draws one number from the CPU's generator, and seeds its mask with that and the
// rank. Restoring that generator therefore restores the masks, as recomputation and checkpoints
// need.
class SequenceDropoutImpl : public torch::nn::Module {
 public:
  // Throws: invalid_argument for a probability outside [0, 1].
  SequenceDropoutImpl(double probability, const ProcessGroup& group);

  // In evaluation mode, x itself.
  at::Tensor forward(const at::Tensor& x);

 private:
  double probability_;
  int rank_;
  at::Generator generator_;
};
TORCH_MODULE(SequenceDropout);

}  // namespace muster
