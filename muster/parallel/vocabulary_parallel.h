// A vocabulary divided over the ranks of a group: the token vectors at a model's beginning, and the loss at
// its end, of which no rank ever has all logits.
//
//   muster::ParallelEmbedding token = muster::parallel_embedding(whole, tp);
//   logits = torch::linear(copy_to_group(x, tp), token->weight);        // tied: this rank's tokens alone
//   loss = muster::parallel_cross_entropy(logits, targets, tp, {.vocabulary = 50257});
//
// Ranks have consecutive tokens; where they do not divide the vocabulary, the first ones have one more, as
// column_parallel with `uneven`.
#pragma once

#include <torch/nn/modules/embedding.h>

#include <optional>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/parallel/tensor_parallel.h"

namespace muster {

struct EmbeddingOptions {
  std::optional<int64_t> sequence_dim = {};  // along which the output is this rank's part
};

// Weight [own tokens, width]. A padding index stays one. Unlike the whole one it has no max_norm and no
// sparse gradients.
class ParallelEmbeddingImpl : public torch::nn::Module, public DividedLayer {
 public:
  // Collective. Throws: as parallel_embedding.
  ParallelEmbeddingImpl(const torch::nn::Embedding& whole, ProcessGroup group, EmbeddingOptions options = {});

  // Shapes: tokens [...] int64, the same on every rank; gives [..., width], the same on every rank, or its
  // part of them. Collective: yes. Throws: invalid_argument for a token that there is not. (On a GPU the
  // owner of the end that it lies beyond fails by an assertion there.)
  at::Tensor forward(const at::Tensor& tokens);

  std::vector<at::Tensor> divided() const override { return {weight}; }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight;

 private:
  mutable ProcessGroup group_;
  EmbeddingOptions options_;
  int64_t vocabulary_;
  int64_t padding_ = -1;  // in this rank's rows
};
TORCH_MODULE(ParallelEmbedding);

// This rank's slice of an embedding that every rank has alike. Copies. Collective. Throws: invalid_argument
// on every rank for fewer tokens than ranks, for embeddings that differ, and for max_norm, scale_grad_by_freq
// and sparse.
ParallelEmbedding parallel_embedding(const torch::nn::Embedding& whole, ProcessGroup group,
                                     EmbeddingOptions options = {});

struct ParallelLossOptions {
  int64_t vocabulary = 0;  // over all ranks; needed, as no rank can tell it by its own part
  int64_t ignore_index = -100;
};

// The mean of cross_entropy over the targets that are not ignored: the same number on every rank. Three
// numbers a target cross the group; the gradient is made without it. Half types are computed, and the loss
// given, in float. Shapes: logits [..., own tokens], targets [...] int64, the same on every rank. Collective:
// yes. Throws: invalid_argument for no vocabulary, for logits that are not this rank's part, and for a target
// that there is not (on a GPU as ParallelEmbedding); failed_precondition for a second derivative. Source:
// torch.nn.functional.cross_entropy.
at::Tensor parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets, ProcessGroup group,
                                  ParallelLossOptions options);

}  // namespace muster
