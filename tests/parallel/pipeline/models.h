// Models cut into stages, and their training by one process, for the tests of pipelines.
#pragma once

#include <torch/torch.h>

#include <utility>
#include <vector>

#include "examples/02_gpt/gpt.h"
#include "muster/parallel/pipeline/pipeline.h"

namespace muster::testing {

struct Batch {
  at::Tensor x, y;
};

// The whole model, as one process trains it, in the pieces that stages are made of.
using Pieces = std::vector<PipelineStage>;

// The first stage of a GPT: vectors of the tokens.
struct GptFrontImpl : torch::nn::Module {
  explicit GptFrontImpl(Gpt of) : gpt(std::move(of)) {
    token = register_module("token", gpt->token);
    position = register_parameter("position", gpt->position);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return token(tokens) + position.narrow(0, 0, tokens.size(1));
  }
  Gpt gpt;
  torch::nn::Embedding token = nullptr;
  at::Tensor position;
};
TORCH_MODULE(GptFront);

// Its last: a guess at each next token. Where the weights are tied it has the token vectors.
struct GptBackImpl : torch::nn::Module {
  explicit GptBackImpl(Gpt of) : gpt(std::move(of)) {
    norm = register_module("norm", gpt->norm);
    weight =
        register_parameter("weight", gpt->options.tied ? gpt->token->weight : gpt->head->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(norm(x), weight); }
  Gpt gpt;
  torch::nn::LayerNorm norm = nullptr;
  at::Tensor weight;
};
TORCH_MODULE(GptBack);

// layers + 2 pieces.
inline Pieces gpt_pieces(const Gpt& gpt) {
  Pieces pieces{GptFront(gpt)};
  for (const auto& block : *gpt->blocks)
    pieces.emplace_back(std::dynamic_pointer_cast<GptBlockImpl>(block));
  pieces.emplace_back(GptBack(gpt));
  return pieces;
}

// 8 pieces.
inline torch::nn::Sequential make_mlp() {
  torch::manual_seed(3);
  torch::nn::Sequential mlp;
  for (int i = 0; i < 4; ++i) {
    mlp->push_back(torch::nn::Linear(i == 0 ? 12 : 16, i == 3 ? 5 : 16));
    mlp->push_back(torch::nn::Tanh());
  }
  return mlp;
}
inline Pieces mlp_pieces(const torch::nn::Sequential& mlp) {
  return {mlp->begin(), mlp->end()};
}

inline Gpt make_gpt(bool tied = false) {
  torch::manual_seed(4);
  return Gpt(GptOptions{
      .vocabulary = 29, .layers = 6, .heads = 2, .width = 16, .context = 8, .tied = tied});
}

// Several pieces in a row.
struct RowImpl : torch::nn::Module {
  explicit RowImpl(Pieces of) : pieces(std::move(of)) {
    for (size_t i = 0; i < pieces.size(); ++i)
      register_module(std::to_string(i), pieces[i].module);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& piece : pieces)
      x = piece.forward(x);
    return x;
  }
  Pieces pieces;
};
TORCH_MODULE(Row);

// The stages of one rank: 8 pieces evenly over `stages`.
inline std::vector<PipelineStage> stages_of(const Pieces& pieces, int rank, int ranks, int stages) {
  std::vector<PipelineStage> mine;
  const size_t each = pieces.size() / static_cast<size_t>(stages);
  for (int stage = rank; stage < stages; stage += ranks) {
    const auto begin = pieces.begin() + static_cast<std::ptrdiff_t>(each) * stage;
    mine.emplace_back(Row(Pieces(begin, begin + static_cast<std::ptrdiff_t>(each))));
  }
  return mine;
}

inline std::vector<Batch> number_batches(int count, int64_t rows) {
  torch::manual_seed(6);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i)
    batches.push_back({torch::randn({rows, 12}), torch::randn({rows, 5})});
  return batches;
}
inline std::vector<Batch> text_batches(int count, int64_t rows) {
  torch::manual_seed(7);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    const auto x = torch::randint(29, {rows, 8}, at::kLong);
    batches.push_back({x, (x * 5 + 2) % 29});
  }
  return batches;
}

inline at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// The losses of a process that has the whole model and accumulates over the same micro-batches.
inline std::vector<double> train_alone(const Pieces& pieces,
                                       const std::vector<at::Tensor>& parameters,
                                       const PipelineLoss& loss_of,
                                       const std::vector<Batch>& batches,
                                       int micro_batches) {
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.2).momentum(0.9));
  std::vector<double> losses;
  for (const Batch& batch : batches) {
    optimizer.zero_grad();
    at::Tensor sum;
    for (int i = 0; i < micro_batches; ++i) {
      at::Tensor x = batch.x.chunk(micro_batches)[static_cast<size_t>(i)];
      for (const auto& piece : pieces)
        x = piece.forward(x);
      const auto loss = loss_of(x, batch.y.chunk(micro_batches)[static_cast<size_t>(i)]);
      (loss / micro_batches).backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    optimizer.step();
    losses.push_back((sum / micro_batches).item<double>());
  }
  return losses;
}

inline std::vector<double> train_in_pipeline(Pipeline& pipeline,
                                             const std::vector<Batch>& batches) {
  torch::optim::SGD optimizer(pipeline.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  std::vector<double> losses;
  for (const Batch& batch : batches) {
    optimizer.zero_grad();
    losses.push_back(pipeline.step(batch.x, batch.y).item<double>());
    optimizer.step();
  }
  return losses;
}

}  // namespace muster::testing
