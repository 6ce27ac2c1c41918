// The example's model, divided over a tensor-parallel group: attention heads, the two linear
// layers, and the vocabulary. The same seed gives the same model, and the same losses but for how
// sums are rounded.
//
//   Gpt whole(options);  // after one seed on every rank
//   ParallelGpt model = ParallelGpt(whole, mesh.group("tp"), {.sequence = true});
//   loss = model->loss(model(tokens), targets);
//
// Knows nothing of text, of training or of data parallelism.
#pragma once

#include <muster/comm/process_group.h>
#include <muster/parallel/tensor/group_functions.h>
#include <muster/parallel/tensor/sequence_parallel.h>
#include <muster/parallel/tensor/tensor_parallel.h>
#include <muster/parallel/tensor/vocabulary_parallel.h>

#include "gpt.h"

struct ParallelGptOptions {
  bool sequence = false;  // whether ranks share the tokens too where every layer's input is whole
};

// A GptBlock of which this rank has some heads, and some of the numbers between the two linear
// layers.
struct ParallelGptBlockImpl : torch::nn::Module {
  ParallelGptBlockImpl(GptBlockImpl& whole,
                       const muster::ProcessGroup& tp,
                       const ParallelGptOptions& o)
      : group(tp), sequence(o.sequence), heads(whole.heads / group.size()), gelu(whole.gelu) {
    const std::optional<int64_t> dim = sequence ? std::optional<int64_t>(1) : std::nullopt;
    norm1 = register_module("norm1", copy_of(whole.norm1));
    qkv = register_module(
        "qkv",
        muster::column_parallel(as_linear(whole.qkv), group, {.stacks = 3, .sequence_dim = dim}));
    mix = register_module("mix",
                          muster::row_parallel(as_linear(whole.mix), group, {.sequence_dim = dim}));
    norm2 = register_module("norm2", copy_of(whole.norm2));
    up = register_module(
        "up", muster::column_parallel(as_linear(whole.up), group, {.sequence_dim = dim}));
    down = register_module(
        "down", muster::row_parallel(as_linear(whole.down), group, {.sequence_dim = dim}));
  }

  static torch::nn::Linear as_linear(const Layer& layer) {
    const std::shared_ptr<torch::nn::LinearImpl> linear = layer.ptr();
    return linear;
  }
  static torch::nn::LayerNorm copy_of(torch::nn::LayerNorm& norm) {
    return torch::nn::LayerNorm(std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(norm->clone()));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto looked = x + attention(normed(norm1, x));
    return looked + down(torch::gelu(up(normed(norm2, looked)), gelu));
  }

  torch::Tensor normed(torch::nn::LayerNorm& norm, const torch::Tensor& x) {
    return sequence ? muster::sequence_layer_norm(norm, x, group) : norm(x);
  }

  // As GptBlock's, with this rank's heads.
  torch::Tensor attention(const torch::Tensor& x) {
    const auto joint = qkv(x);
    const auto parts =
        joint.view({joint.size(0), joint.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(parts[0],
                                                          parts[1],
                                                          parts[2],
                                                          {},
                                                          /*dropout_p=*/0.0,
                                                          /*is_causal=*/true);
    return mix(seen.transpose(1, 2).flatten(2));
  }

  muster::ProcessGroup group;
  bool sequence;
  int64_t heads;
  std::string gelu;
  torch::nn::LayerNorm norm1 = nullptr;
  muster::ColumnParallelLinear qkv = nullptr;
  muster::RowParallelLinear mix = nullptr;
  torch::nn::LayerNorm norm2 = nullptr;
  muster::ColumnParallelLinear up = nullptr;
  muster::RowParallelLinear down = nullptr;
};
TORCH_MODULE(ParallelGptBlock);

struct ParallelGptImpl : torch::nn::Module {
  // Copies its part of `whole`, which every rank has alike. Collective. Throws: invalid_argument on
  // every rank for heads that the ranks do not divide, and for models that differ.
  ParallelGptImpl(Gpt whole, const muster::ProcessGroup& tp, const ParallelGptOptions& o = {})
      : options(whole->options), sequence(o.sequence), group(tp) {
    if (options.heads % group.size() != 0) {
      throw muster::Error(muster::ErrorCode::invalid_argument,
                          muster::cat("gpt: expected heads that the ",
                                      group.size(),
                                      " ranks of the group divide, got ",
                                      options.heads,
                                      " (rank ",
                                      group.rank(),
                                      "); change one of them"));
    }
    const std::optional<int64_t> dim = sequence ? std::optional<int64_t>(1) : std::nullopt;
    token = register_module("token",
                            muster::parallel_embedding(whole->token, group, {.sequence_dim = dim}));
    position = register_parameter("position", whole->position.detach().clone());
    for (const auto& block : *whole->blocks)
      blocks->push_back(ParallelGptBlock(*block->as<GptBlock>(), group, o));
    register_module("blocks", blocks);
    norm = register_module("norm", ParallelGptBlockImpl::copy_of(whole->norm));
    if (!options.tied) {
      head = register_module(
          "head",
          muster::column_parallel(whole->head, group, {.uneven = true, .sequence_dim = dim}));
    }
  }

  // Shapes: tokens [batch, length] int64, the same on every rank; gives this rank's logits [batch,
  // length, own part of the vocabulary]. With `sequence` the ranks must divide the length.
  torch::Tensor forward(const torch::Tensor& tokens) {
    TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= options.context,
                "gpt: expected tokens [batch, length of at most ",
                options.context,
                "], got ",
                tokens.sizes(),
                "; cut them");
    auto x = embed(tokens);
    for (const auto& block : *blocks)
      x = block->as<ParallelGptBlock>()->forward(x);
    return guess(x);
  }

  // What comes before the blocks, and after them.
  torch::Tensor embed(const torch::Tensor& tokens) {
    auto places = position.narrow(0, 0, tokens.size(1));
    if (sequence)
      places = muster::scatter_to_group(places, group, 0);
    return token(tokens) + places;
  }
  torch::Tensor guess(const torch::Tensor& x) {
    const auto normed = sequence ? muster::sequence_layer_norm(norm, x, group) : norm(x);
    if (!options.tied)
      return head(normed);
    const auto whole =
        sequence ? muster::gather_sequence(normed, group, 1) : muster::copy_to_group(normed, group);
    return torch::linear(whole, token->weight);
  }

  // next_token_loss, without all logits anywhere. Shapes: targets [batch, length] int64.
  torch::Tensor loss(const torch::Tensor& logits, const torch::Tensor& targets) {
    return muster::parallel_cross_entropy(
        logits, targets, group, {.vocabulary = options.vocabulary});
  }

  GptOptions options;
  bool sequence;
  muster::ProcessGroup group;
  muster::ParallelEmbedding token = nullptr;
  torch::Tensor position;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm = nullptr;
  muster::ColumnParallelLinear head = nullptr;
};
TORCH_MODULE(ParallelGpt);
