// The MLP and the GPT, each layer or block gathered by itself.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/models.h"

namespace muster::testing {

struct LayeredMlpImpl : torch::nn::Module {
  LayeredMlpImpl(torch::nn::Sequential mlp_, FullySharded& sharded)
      : mlp(register_module("mlp", std::move(mlp_))) {
    for (const size_t i : {0, 2, 4})
      layers.push_back(sharded.wrap(std::dynamic_pointer_cast<torch::nn::LinearImpl>(mlp->ptr(i))));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return layers[2](torch::tanh(layers[1](torch::tanh(layers[0](x)))));
  }
  torch::nn::Sequential mlp;
  std::vector<FullyShardedModule<std::shared_ptr<torch::nn::LinearImpl>>> layers;
};

// What remains of the GPT (vectors of tokens and places, the last norm, the head) is the outer
// module's.
struct BlockedGptImpl : torch::nn::Module {
  BlockedGptImpl(Gpt gpt_, FullySharded& sharded) : gpt(register_module("gpt", std::move(gpt_))) {
    for (const auto& block : *gpt->blocks)
      blocks.push_back(sharded.wrap(std::dynamic_pointer_cast<GptBlockImpl>(block)));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = gpt->token(tokens) + gpt->position.narrow(0, 0, tokens.size(1));
    for (auto& block : blocks)
      x = block(x);
    return gpt->head(gpt->norm(x));
  }
  Gpt gpt;
  std::vector<FullyShardedModule<std::shared_ptr<GptBlockImpl>>> blocks;
};

}  // namespace muster::testing
