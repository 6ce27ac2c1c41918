// A vocabulary divided over the ranks of a group: the token embedding at a model's start, and the
// loss at its end, for which no rank ever has all logits.
//
//   muster::ParallelEmbedding token = muster::parallel_embedding(whole, tp);
//   // Tied: this rank's tokens alone.
//   logits = torch::linear(copy_to_group(x, tp), token->weight);
//   loss = muster::parallel_cross_entropy(logits, targets, tp, {.vocabulary = 50257});
//
// Each rank has consecutive tokens. If they cannot be divided evenly, the first ranks have one
// more, as in column_parallel with `uneven`.
#pragma once

#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/tensor/same_input.h"
#include "muster/parallel/tensor/tensor_parallel.h"

namespace muster {

struct EmbeddingOptions {
  std::optional<int64_t> sequence_dim = {};  // along which the output is this rank's part
};

// Weight [own tokens, width]. A padding index is kept. Unlike torch::nn::Embedding it has no
// max_norm and no sparse gradients.
class ParallelEmbeddingImpl : public DividedLayer {
 public:
  // Collective: yes. Throws: as parallel_embedding.
  ParallelEmbeddingImpl(const torch::nn::Embedding& whole,
                        ProcessGroup group,
                        EmbeddingOptions options = {});

  // Shapes: tokens [...] int64, the same on every rank; returns [..., width], the same on every
  // rank, or this rank's part. Collective: yes. Throws: invalid_argument for a token out of range,
  // and as ColumnParallelLinearImpl::forward.
  // (On a GPU it is a device assertion, on the rank that has the end of the vocabulary nearest to
  // the token.)
  at::Tensor forward(const at::Tensor& tokens);

  Tensors divided() const override { return {weight}; }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight;

 private:
  void require_own_part() const;

  EmbeddingOptions options_;
  int64_t vocabulary_;
  SameInput same_input_;
  int64_t padding_ = -1;  // in this rank's rows
};
TORCH_MODULE(ParallelEmbedding);

// Copies this rank's slice of an embedding that is equal on every rank.
// Collective: yes.
// Throws: invalid_argument, on every rank, for fewer tokens than ranks, for embeddings that differ,
// and for max_norm, scale_grad_by_freq and sparse.
ParallelEmbedding parallel_embedding(const torch::nn::Embedding& whole,
                                     ProcessGroup group,
                                     EmbeddingOptions options = {});

struct ParallelLossOptions {
  int64_t vocabulary = 0;  // over all ranks; required, because no rank can infer it
  int64_t ignore_index = -100;
};

// The mean cross_entropy over the targets that are not ignored, the same on every rank. Three
// numbers per target cross the group; the gradient needs no communication. Half types are computed,
// and the loss returned, in float. Shapes: logits [..., own tokens], targets [...] int64, the same
// on every rank. Collective: yes. Throws: invalid_argument without a vocabulary, for logits that
// are not this rank's part, and for a target out of range (on a GPU as ParallelEmbedding);
// failed_precondition for a second derivative. Source: torch.nn.functional.cross_entropy.
at::Tensor parallel_cross_entropy(const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  ProcessGroup group,
                                  ParallelLossOptions options);

}  // namespace muster
