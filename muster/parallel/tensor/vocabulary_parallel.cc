// An embedding and a cross entropy whose vocabulary is sharded over a group. A rank looks up the
// tokens that it has, and gives zeros for others; the sum over the ranks is the whole. The loss
// needs of each token the maximum, the sum of exponentials and the target's logit: two small
// collectives, whatever the vocabulary.
#include "muster/parallel/tensor/vocabulary_parallel.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/text_of.h"
#include "muster/base/torch_names.h"
#include "muster/optim/parts.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/tensor/cut_weights.h"
#include "muster/parallel/tensor/group_collectives.h"

namespace muster {

namespace {

// Ids as indices of this rank's rows. `foreign` says which ids another rank has; their index is 0.
struct OwnIds {
  Tensor index;
  Tensor foreign;
};

// An id beyond an end stays an index of the rank at that end, and out of range there, so that no
// GPU need be asked.
OwnIds own_ids(const Tensor& ids, int64_t vocabulary, const ProcessGroup& group) {
  const OwnRows rows = own_rows(vocabulary, group);
  const Tensor index = ids - rows.begin;
  Tensor foreign = at::zeros_like(ids, ids.options().dtype(kBool));
  if (group.rank() > 0)
    foreign = foreign.logical_or(index < 0);
  if (group.rank() + 1 < group.size())
    foreign = foreign.logical_or(index >= rows.length);
  return {.index = index.masked_fill(foreign, 0), .foreign = foreign};
}

// Ids on a GPU are not looked at, since that would wait for the device.
void expect_ids(const char* call,
                const char* what,
                const Tensor& ids,
                int64_t vocabulary,
                const ProcessGroup& group) {
  if (ids.scalar_type() != kLong) {
    throw invalid_argument(call,
                           ": expected ",
                           what,
                           " of type Long, got ",
                           toString(ids.scalar_type()),
                           " (rank ",
                           group.job_rank(),
                           "); convert them");
  }
  if (!ids.is_cpu() || ids.numel() == 0)
    return;
  const int64_t least = ids.min().item<int64_t>();
  const int64_t most = ids.max().item<int64_t>();
  if (least >= 0 && most < vocabulary)
    return;
  throw invalid_argument(call,
                         ": expected ",
                         what,
                         " from 0 to ",
                         vocabulary - 1,
                         ", got ",
                         least < 0 ? least : most,
                         " (rank ",
                         group.job_rank(),
                         "); look at where the tokens come from");
}

// The name of an option that is set and not supported here, or null.
const char* unknown_option(const torch::nn::EmbeddingOptions& options) {
  if (options.max_norm())
    return "max_norm";
  if (options.scale_grad_by_freq())
    return "scale_grad_by_freq";
  return options.sparse() ? "sparse" : nullptr;
}

// Returns what is wrong with an embedding that is to be sharded, or nothing.
std::string wrong_embedding(const torch::nn::Embedding& layer,
                            int64_t vocabulary,
                            const ProcessGroup& group) {
  if (const auto wrong = wrong_tie("parallel_embedding", *layer, layer->weight, group);
      !wrong.empty())
    return wrong;
  if (const char* const unknown = unknown_option(layer->options)) {
    return cat("parallel_embedding: expected none of max_norm, scale_grad_by_freq and sparse, got ",
               unknown,
               " (rank ",
               group.job_rank(),
               "); make the embedding without");
  }
  if (vocabulary >= group.size())
    return {};
  return cat("parallel_embedding: expected a token for each of ",
             plural(group.size(), "rank"),
             ", got ",
             plural(vocabulary, "token"),
             " (rank ",
             group.job_rank(),
             "); use a smaller group");
}

bool is_half(ScalarType type) {
  return type == kHalf || type == kBFloat16;
}

// The forward returns the mean over the targets that are not ignored.
struct ParallelCrossEntropy : torch::autograd::Function<ParallelCrossEntropy> {
  static Tensor forward(AutogradContext* context,
                        const Tensor& logits,
                        const Tensor& targets,
                        ProcessGroup& group,
                        int64_t vocabulary,
                        int64_t ignore_index) {
    const Tensor rows = is_half(logits.scalar_type()) ? logits.to(kFloat) : logits;
    const Tensor ignored = targets == ignore_index;
    const OwnIds own = own_ids(targets.masked_fill(ignored, 0), vocabulary, group);

    // The largest logit of all ranks is subtracted, so that no exponential overflows.
    Tensor largest = rows.amax(-1);
    group.all_reduce(largest, ReduceOp::max);
    // Both sums go in one collective.
    Tensor sums = at::empty({2, targets.size(0)}, rows.options());
    sums[0].copy_((rows - largest.unsqueeze(-1)).exp_().sum(-1));
    const Tensor picked = rows.gather(-1, own.index.unsqueeze(-1)).squeeze(-1) - largest;
    sums[1].copy_(picked.masked_fill(own.foreign, 0));
    group.all_reduce(sums);

    const Tensor count = ignored.logical_not().sum().to(rows.scalar_type());
    const Tensor losses = sums[0].log() - sums[1];
    context->save_for_backward(
        {logits, own.index, own.foreign, ignored, largest, sums[0].clone(), count});
    return losses.masked_fill(ignored, 0).sum() / count;
  }

  // The gradient is the softmax, less 1 at the target. It needs only the sums of the forward, so
  // the ranks exchange nothing.
  static Tensors backward(AutogradContext* context, Tensors gradients) {
    refuse_second_derivative("parallel_cross_entropy");
    const Tensors saved = context->get_saved_variables();
    const Tensor &logits = saved[0], &index = saved[1], &foreign = saved[2], &ignored = saved[3];
    const Tensor &largest = saved[4], &sum = saved[5], &count = saved[6];
    const Tensor rows = is_half(logits.scalar_type()) ? logits.to(kFloat) : logits;
    Tensor gradient = (rows - largest.unsqueeze(-1)).exp_().div_(sum.unsqueeze(-1));
    const Tensor minus_one = foreign.logical_not().to(rows.scalar_type()).neg_();
    gradient.scatter_add_(-1, index.unsqueeze(-1), minus_one.unsqueeze(-1));
    gradient.mul_(gradients[0] / count).masked_fill_(ignored.unsqueeze(-1), 0);
    return {gradient.to(logits.scalar_type()), {}, {}, {}, {}};
  }
};

}  // namespace

// All ranks construct it together, from the same whole embedding.
ParallelEmbeddingImpl::ParallelEmbeddingImpl(const torch::nn::Embedding& whole,
                                             ProcessGroup group,
                                             EmbeddingOptions options)
    : DividedLayer("parallel_embedding", std::move(group)),
      options_(options),
      vocabulary_(whole->weight.size(0)) {
  Terms terms = terms_of("parameter", {whole->weight});
  terms.push_back({"sequence_dim", text_of(options_.sequence_dim, "none")});
  require_agreement(
      group_, "parallel_embedding", wrong_embedding(whole, vocabulary_, group_), terms);
  const OwnRows rows = own_rows(vocabulary_, group_);
  const Tensor own = whole->weight.detach().narrow(0, rows.begin, rows.length).clone();
  weight = register_parameter("weight", own, whole->weight.requires_grad());
  remember_cut(*whole, whole->weight, weight);
  if (group_.size() > 1)
    optim::mark_layer_parts({weight}, group_.job_ranks());
  // Only the rank that has the padding token's row keeps its index.
  int64_t padding = whole->options.padding_idx().value_or(-1);
  if (whole->options.padding_idx() && padding < 0)
    padding += vocabulary_;
  if (padding >= rows.begin && padding < rows.begin + rows.length)
    padding_ = padding - rows.begin;
}

// In a whole weight this rank's indices would be those of other tokens.
void ParallelEmbeddingImpl::require_own_part() const {
  require_part("weight", weight, 0, own_rows(vocabulary_, group_).length);
}

// All ranks call it together, with the same tokens.
Tensor ParallelEmbeddingImpl::forward(const Tensor& tokens) {
  require_own_part();
  begin_forward();
  expect_ids("ParallelEmbedding", "tokens", tokens, vocabulary_, group_);
  same_input_.require("parallel_embedding", tokens, weight, group_);
  const OwnIds own = own_ids(tokens, vocabulary_, group_);
  const Tensor part =
      at::embedding(weight, own.index, padding_).masked_fill(own.foreign.unsqueeze(-1), 0);
  if (!options_.sequence_dim)
    return reduce_from_group(part, group_);
  return reduce_scatter_sequence(part, group_, *options_.sequence_dim);
}

WholeParameters ParallelEmbeddingImpl::gather_parameters() const {
  require_own_part();
  return {{"weight", gathered_rows(weight, vocabulary_, group_)}};
}

TensorPieces ParallelEmbeddingImpl::pieces() const {
  require_own_part();
  const OwnRows rows = own_rows(vocabulary_, group_);
  return {slice_piece("weight", {vocabulary_, weight.size(1)}, 0, rows.begin, weight)};
}

ParallelEmbedding parallel_embedding(const torch::nn::Embedding& whole,
                                     ProcessGroup group,
                                     EmbeddingOptions options) {
  return ParallelEmbedding(whole, std::move(group), options);
}

// All ranks call it together, with the same targets and each its part of the logits.
Tensor parallel_cross_entropy(const Tensor& logits,
                              const Tensor& targets,
                              ProcessGroup group,
                              ParallelLossOptions options) {
  constexpr const char* kCall = "parallel_cross_entropy";
  const int64_t own = logits.dim() > 0 ? logits.size(-1) : 0;
  const int64_t vocabulary = options.vocabulary;
  if (vocabulary < 1) {
    throw invalid_argument(kCall,
                           ": expected the vocabulary of all ranks, got ",
                           vocabulary,
                           " (rank ",
                           group.job_rank(),
                           "); give {.vocabulary = …}");
  }
  const bool has_part = own > 0 && own == own_rows(vocabulary, group).length;
  if (!has_part || logits.sizes().slice(0, logits.dim() - 1) != targets.sizes()) {
    throw invalid_argument(kCall,
                           ": expected logits [targets, ",
                           own_rows(vocabulary, group).length,
                           " of ",
                           vocabulary,
                           " tokens], got [",
                           sizes_text(logits),
                           "] for targets [",
                           sizes_text(targets),
                           "] (rank ",
                           group.job_rank(),
                           "); give the head's part");
  }
  // An ignored target may be any number, so it is not checked.
  expect_ids(
      kCall, "targets", targets.masked_fill(targets == options.ignore_index, 0), vocabulary, group);
  return ParallelCrossEntropy::apply(
      logits.reshape({-1, own}), targets.flatten(), group, vocabulary, options.ignore_index);
}

}  // namespace muster
