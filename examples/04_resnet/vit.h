// A vision transformer: a picture is cut into patches, each patch is a token, and a first token of
// no picture becomes the answer. And the names that published ones have for its weights.
#pragma once

#include <muster/checkpoint/load_weights.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

struct VitOptions {
  int64_t side = 224;  // of a picture
  int64_t patch = 16;
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t inner = 3072;  // between a block's two linear layers
  int64_t classes = 10;
};

struct VitBlockImpl : torch::nn::Module {
  explicit VitBlockImpl(const VitOptions& o)
      : heads(o.heads),
        norm1(torch::nn::LayerNormOptions({o.width}).eps(1e-12)),
        qkv(o.width, 3 * o.width),
        mix(o.width, o.width),
        norm2(torch::nn::LayerNormOptions({o.width}).eps(1e-12)),
        up(o.width, o.inner),
        down(o.inner, o.width) {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("mix", mix);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto looked = x + attention(norm1(x));
    return looked + down(torch::gelu(up(norm2(looked))));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    // [batch, length, 3 * width] to three of [batch, heads, length, width / heads]
    const auto parts =
        qkv(x).view({x.size(0), x.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    return mix(seen.transpose(1, 2).flatten(2));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, mix;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(VitBlock);

struct VitImpl : torch::nn::Module {
  explicit VitImpl(const VitOptions& o)
      : options(o),
        patches(torch::nn::Conv2dOptions(3, o.width, o.patch).stride(o.patch)),
        norm(torch::nn::LayerNormOptions({o.width}).eps(1e-12)),
        head(o.width, o.classes) {
    const int64_t tokens = (o.side / o.patch) * (o.side / o.patch);
    register_module("patches", patches);
    first = register_parameter("first", torch::zeros({1, 1, o.width}));
    position = register_parameter("position", 0.02 * torch::randn({1, tokens + 1, o.width}));
    for (int64_t i = 0; i < o.layers; ++i)
      blocks->push_back(VitBlock(o));
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }

  // Shapes: x [batch, 3, side, side]; gives logits [batch, classes].
  torch::Tensor forward(const torch::Tensor& x) {
    const auto seen = patches(x).flatten(2).transpose(1, 2);
    const auto tokens = torch::cat({first.expand({x.size(0), -1, -1}), seen}, 1) + position;
    return head(norm(blocks->forward(tokens)).select(1, 0));
  }

  VitOptions options;
  torch::nn::Conv2d patches;
  torch::Tensor first, position;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Vit);

// The names that transformers has, and the model's.
inline const muster::WeightNames& vit_names() {
  static const muster::WeightNames names{
      .rows = {{"embeddings.cls_token", "first"},
               {"embeddings.position_embeddings", "position"},
               {"embeddings.patch_embeddings.projection.*", "patches.*"},
               {"encoder.layer.*.layernorm_before.*", "blocks.*.norm1.*"},
               {"encoder.layer.*.attention.attention.{query,key,value}.*", "blocks.*.qkv.*"},
               {"encoder.layer.*.attention.output.dense.*", "blocks.*.mix.*"},
               {"encoder.layer.*.layernorm_after.*", "blocks.*.norm2.*"},
               {"encoder.layer.*.intermediate.dense.*", "blocks.*.up.*"},
               {"encoder.layer.*.output.dense.*", "blocks.*.down.*"},
               {"layernorm.*", "norm.*"},
               {"classifier.*", "head.*"},
               {"pooler.dense.*", ""}},  // for other work than telling classes apart
      .prefix = "vit."};
  return names;
}

inline bool has_vit(const muster::WeightShapes& shapes) {
  return shapes.contains("patches.weight") && shapes.contains("position");
}

// The sizes of the model in a file. How many heads it has is not seen there; the published ones
// have one for every 64 of the width.
inline VitOptions vit_sizes(const muster::WeightShapes& shapes, int64_t classes) {
  const auto& patches = shapes.at("patches.weight");
  const auto& position = shapes.at("position");
  VitOptions o{.patch = patches.at(3), .layers = 0, .width = patches[0], .classes = classes};
  const auto tokens = static_cast<double>(position.at(1) - 1);
  o.side = std::lround(std::sqrt(tokens)) * o.patch;
  o.heads = std::max<int64_t>(o.width / 64, 1);
  while (shapes.contains(muster::cat("blocks.", o.layers, ".qkv.weight")))
    ++o.layers;
  if (o.layers > 0)
    o.inner = shapes.at("blocks.0.up.weight")[0];
  return o;
}

// Makes the model that a file is of, with a head for other classes, and reads all but the head.
// Throws: as load_weights. Collective: yes.
inline Vit load_vit(const std::string& path, int64_t classes, const muster::Peers& peers = {}) {
  Vit net(vit_sizes(muster::weight_shapes(path, vit_names(), peers), classes));
  const auto is_body = [](const std::string& name) {
    return !name.starts_with("head.");
  };
  muster::load_weights(*net, path, {.names = vit_names(), .only = is_body}, peers);
  return net;
}
