// LoRA: a trained model's linear layers stay as they are, and each gets an adapter, two small
// matrices whose product is what is learned (Hu et al., arXiv:2106.09685). Knows nothing of what
// the layers are part of.
//
//   muster::load_weights(*net, …);
//   freeze(*net);
//   for (auto& block : *net->blocks)
//     add_lora(*block->as<GptBlock>(), {.rank = 8});
//   muster::optim::AdamW optimizer(trained_parameters(*net), 1e-3);
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/tensor_pieces.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../02_gpt/gpt.h"

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 16;  // what the adapter gives is multiplied by alpha / rank
  double dropout = 0;
  std::vector<std::string> layers = {"qkv"};  // their names in a block
};

// A layer with an adapter. The layer's own tensors keep their names.
struct LoraLinearImpl : LayerImpl {
  LoraLinearImpl(const LayerImpl& layer, const LoraOptions& o)
      : LayerImpl(layer),
        scale(o.alpha / static_cast<double>(o.rank)),
        dropout(o.dropout),
        lora_A(torch::nn::LinearOptions(options.in_features(), o.rank).bias(false)),
        lora_B(torch::nn::LinearOptions(o.rank, options.out_features()).bias(false)) {
    register_module("lora_A", lora_A);
    register_module("lora_B", lora_B);
    torch::nn::init::zeros_(lora_B->weight);  // at first the layer is as it was
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    const auto seen = torch::dropout(x, dropout, is_training());
    return LayerImpl::forward(x) + lora_B(lora_A(seen)) * scale;
  }

  // The layer's own weights become those of both together, and the adapter is as at first.
  void merge() {
    const torch::NoGradGuard no_grad;
    weight.add_(torch::mm(lora_B->weight, lora_A->weight), scale);
    torch::nn::init::zeros_(lora_B->weight);
  }

  double scale, dropout;
  torch::nn::Linear lora_A, lora_B;
};

inline bool is_adapter(const std::string& name) {
  return name.find(".lora_") != std::string::npos;
}

inline void freeze(torch::nn::Module& model) {
  for (const auto& parameter : model.parameters())
    parameter.set_requires_grad(false);
}

// Replaces layers of a block (`layers()`) by ones with an adapter. Throws: invalid_argument for a
// name that the block does not have, or a rank below 1.
template <class Block>
void add_lora(Block& block, const LoraOptions& options) {
  auto layers = block.layers();
  for (const std::string& name : options.layers) {
    const auto found = layers.find(name);
    if (found == layers.end() || options.rank < 1)
      throw muster::Error(
          muster::ErrorCode::invalid_argument,
          muster::cat("lora: expected a rank of at least 1 and layers of the block, "
                      "got rank ",
                      options.rank,
                      " and '",
                      name,
                      "'; correct it"));
    Layer& layer = found->second;
    const std::shared_ptr<LayerImpl> lora = std::make_shared<LoraLinearImpl>(*layer, options);
    layer = block.replace_module(name, lora);
  }
}

inline void merge_lora(torch::nn::Module& model) {
  for (const auto& module : model.modules())
    if (auto* layer = module->as<LoraLinearImpl>())
      layer->merge();
}

inline std::vector<torch::Tensor> trained_parameters(const torch::nn::Module& model) {
  std::vector<torch::Tensor> parameters = model.parameters();
  std::erase_if(parameters, [](const torch::Tensor& each) { return !each.requires_grad(); });
  return parameters;
}

// What a checkpoint keeps of a model: its adapters alone.
inline muster::TensorPieces adapters_of(muster::TensorPieces pieces) {
  std::erase_if(pieces, [](const muster::TensorPiece& piece) { return !is_adapter(piece.name); });
  return pieces;
}
