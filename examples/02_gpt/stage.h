// The example's model, cut into the stages of a pipeline; each may be divided over a
// tensor-parallel group too.
//
//   ParallelGpt model(whole, mesh.group("tp"));        // a group of one rank: undivided
//   GptStage stage(model, mesh.rank("pp"), mesh.size("pp"));
//   stage->to(device);                                 // its own parameters alone
#pragma once

#include "parallel.h"

// Stage `number`: an even part of the blocks, what comes before them in the first, what comes after
// in the last. Parameters have the whole model's names. Throws: invalid_argument for layers that
// the stages do not divide.
struct GptStageImpl : torch::nn::Module {
  GptStageImpl(const ParallelGpt& whole, int64_t number, int64_t stages)
      : model(whole), is_first(number == 0), is_last(number + 1 == stages) {
    const int64_t layers = model->options.layers;
    if (layers % stages != 0) {
      throw muster::Error(muster::ErrorCode::invalid_argument,
                          muster::cat("gpt: expected layers that ",
                                      stages,
                                      " stages divide, got ",
                                      layers,
                                      "; change one of them"));
    }
    std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> own;
    for (int64_t i = number * layers / stages; i < (number + 1) * layers / stages; ++i) {
      const auto block = model->blocks->ptr<ParallelGptBlockImpl>(static_cast<size_t>(i));
      own.emplace_back(std::to_string(i), block);
      blocks.push_back(block);
    }
    register_module("blocks", torch::nn::ModuleDict(own));
    if (is_first)
      register_parameter("position", model->position);
    if (is_first || (is_last && model->options.tied))
      register_module("token", model->token);
    if (is_last)
      register_module("norm", model->norm);
    if (is_last && !model->options.tied)
      register_module("head", model->head);
  }

  // Shapes: tokens [batch, length] in the first stage, and [batch, length, width] in the others;
  // gives that, or in the last stage logits as ParallelGpt's.
  torch::Tensor forward(const torch::Tensor& input) {
    auto x = is_first ? model->embed(input) : input;
    for (const auto& block : blocks)
      x = block->forward(x);
    return is_last ? model->guess(x) : x;
  }

  // The token vectors where this stage uses them and another one too; undefined elsewhere.
  torch::Tensor tied_weight() const {
    return model->options.tied && is_first != is_last ? model->token->weight : torch::Tensor();
  }

  ParallelGpt model;
  bool is_first, is_last;
  std::vector<std::shared_ptr<ParallelGptBlockImpl>> blocks;
};
TORCH_MODULE(GptStage);
