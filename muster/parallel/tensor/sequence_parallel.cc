// Layers on a sequence that is sharded over a group. Parameters are whole on every rank, and their
// gradients are summed over the ranks, as each rank sees only its tokens.
#include "muster/parallel/tensor/sequence_parallel.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cstdint>
#include <limits>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/tensor/group_functions.h"

namespace muster {

namespace {

// Returns another seed for each rank and each call. All ranks draw the same number, since their
// generators are in the same state, and the rank tells them apart.
uint64_t next_seed(int rank) {
  const Tensor drawn = at::randint(std::numeric_limits<int64_t>::max(), {1}, kLong);
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // spreads neighbouring ranks
  const uint64_t seed = drawn.item<int64_t>();
  return seed + kOdd * (rank + 1);
}

}  // namespace

// Weight and bias go as one tensor: one all_reduce in backward.
Tensor sequence_layer_norm(const torch::nn::LayerNorm& norm, const Tensor& x, ProcessGroup group) {
  Tensor weight = norm->weight, bias = norm->bias;
  if (weight.defined() && bias.defined()) {
    const Tensors both = copy_to_group(at::stack({weight, bias}), group).unbind(0);
    weight = both[0];
    bias = both[1];
  } else if (weight.defined()) {
    weight = copy_to_group(weight, group);
  }
  return at::layer_norm(x, norm->options.normalized_shape(), weight, bias, norm->options.eps());
}

// The generator is a copy, so the model's own draws stay alike on all ranks.
SequenceDropoutImpl::SequenceDropoutImpl(double probability, const ProcessGroup& group)
    : probability_(probability),
      rank_(group.rank()),
      generator_(at::globalContext().defaultGenerator(group.device()).clone()) {
  if (probability >= 0 && probability <= 1)
    return;
  throw invalid_argument("SequenceDropout: expected a probability from 0 to 1, got ",
                         probability,
                         " (rank ",
                         group.job_rank(),
                         "); 0.1 is a common choice");
}

// An evaluation returns its input, and draws nothing.
Tensor SequenceDropoutImpl::forward(const Tensor& x) {
  if (!is_training() || probability_ == 0)
    return x;
  if (probability_ == 1)
    return x * 0;
  generator_.set_current_seed(next_seed(rank_));
  const Tensor kept = at::empty_like(x).bernoulli_(1 - probability_, generator_);
  return x * kept.div_(1 - probability_);
}

}  // namespace muster
