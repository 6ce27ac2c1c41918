// The example's model, whose parameters are divided over all ranks. Each block is gathered by
// itself, while it computes.
//
//   muster::FullySharded sharded(group);
//   // What remains beside the blocks:
//   auto model = sharded.wrap(ShardedGpt(whole, sharded, device));
#pragma once

#include <muster/parallel/sharded/fully_sharded.h>

#include <memory>
#include <vector>

#include "gpt.h"

struct ShardedGptImpl : torch::nn::Module {
  // `net` may lie in host memory: a block is on the device as a whole only until it is divided.
  ShardedGptImpl(const Gpt& whole, muster::FullySharded& sharded, const torch::Device& device)
      : net(whole) {
    for (size_t i = 0; i < net->blocks->size(); ++i) {
      net->blocks->ptr(i)->to(device);
      blocks.push_back(sharded.wrap(net->blocks->ptr<GptBlockImpl>(i)));
    }
    net->to(device);  // the rest
    register_module("net", net);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = net->embed(tokens);
    for (auto& block : blocks)
      x = block(x);
    return net->guess(x);
  }

  Gpt net;
  std::vector<muster::FullyShardedModule<std::shared_ptr<GptBlockImpl>>> blocks;
};
TORCH_MODULE(ShardedGpt);
