// BERT as it is published, with a new head that sorts texts into classes: each token looks at all
// others, and what the first one has seen becomes the answer. And the names of its weights.
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/load_weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

struct BertOptions {
  int64_t vocabulary = 30522;
  int64_t context = 512;  // tokens of a text, at most
  int64_t kinds = 2;      // of tokens: of a first text and of a second one
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t inner = 3072;  // between a block's two linear layers
  int64_t classes = 2;
  double dropout = 0.1;
};

inline torch::nn::LayerNorm bert_norm(const BertOptions& o) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.width}).eps(1e-12));
}

struct BertBlockImpl : torch::nn::Module {
  explicit BertBlockImpl(const BertOptions& o)
      : options(o),
        qkv(o.width, 3 * o.width),
        mix(o.width, o.width),
        norm1(bert_norm(o)),
        up(o.width, o.inner),
        down(o.inner, o.width),
        norm2(bert_norm(o)),
        drop(o.dropout) {
    register_module("qkv", qkv);
    register_module("mix", mix);
    register_module("norm1", norm1);
    register_module("up", up);
    register_module("down", down);
    register_module("norm2", norm2);
    register_module("drop", drop);
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& is_seen) {
    const auto looked = norm1(x + drop(attention(x, is_seen)));
    return norm2(looked + drop(down(torch::gelu(up(looked)))));
  }

  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& is_seen) {
    // [batch, length, 3 * width] to three of [batch, heads, length, width / heads]
    const auto parts =
        qkv(x).view({x.size(0), x.size(1), 3, options.heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], is_seen, is_training() ? options.dropout : 0);
    return mix(seen.transpose(1, 2).flatten(2));
  }

  BertOptions options;
  torch::nn::Linear qkv, mix;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear up, down;
  torch::nn::LayerNorm norm2;
  torch::nn::Dropout drop;
};
TORCH_MODULE(BertBlock);

struct BertImpl : torch::nn::Module {
  explicit BertImpl(const BertOptions& o)
      : options(o),
        token(o.vocabulary, o.width),
        kind(o.kinds, o.width),
        norm(bert_norm(o)),
        pooler(o.width, o.width),
        head(o.width, o.classes),
        drop(o.dropout) {
    register_module("token", token);
    register_module("kind", kind);
    position = register_parameter("position", 0.02 * torch::randn({o.context, o.width}));
    register_module("norm", norm);
    for (int64_t i = 0; i < o.layers; ++i)
      blocks->push_back(BertBlock(o));
    register_module("blocks", blocks);
    register_module("pooler", pooler);
    register_module("head", head);
    register_module("drop", drop);
  }

  // Shapes: [batch, length] all: `tokens` begin with [CLS]; `kinds` are 0, and 1 in a second text;
  // `mask` is true where there is a token, and false in what fills a shorter text up. Gives logits
  // [batch, classes].
  torch::Tensor forward(const torch::Tensor& tokens,
                        const torch::Tensor& kinds,
                        const torch::Tensor& mask) {
    const auto places = position.slice(0, 0, tokens.size(1));
    auto x = drop(norm(token(tokens) + kind(kinds) + places));
    const auto is_seen = mask.unsqueeze(1).unsqueeze(1);
    for (const auto& block : *blocks)
      x = block->as<BertBlock>()->forward(x, is_seen);
    return head(drop(pooler(x.select(1, 0)).tanh()));
  }

  BertOptions options;
  torch::nn::Embedding token, kind;
  torch::Tensor position;
  torch::nn::LayerNorm norm;
  torch::nn::ModuleList blocks;
  torch::nn::Linear pooler, head;
  torch::nn::Dropout drop;
};
TORCH_MODULE(Bert);

// The names that transformers has, and the model's. Older files have gamma and beta.
inline const muster::WeightNames& bert_names() {
  static const muster::WeightNames names{
      .rows = {{"embeddings.word_embeddings.weight", "token.weight"},
               {"embeddings.position_embeddings.weight", "position"},
               {"embeddings.token_type_embeddings.weight", "kind.weight"},
               {"embeddings.LayerNorm.gamma", "norm.weight"},
               {"embeddings.LayerNorm.beta", "norm.bias"},
               {"embeddings.LayerNorm.*", "norm.*"},
               {"encoder.layer.*.attention.self.{query,key,value}.*", "blocks.*.qkv.*"},
               {"encoder.layer.*.attention.output.dense.*", "blocks.*.mix.*"},
               {"encoder.layer.*.attention.output.LayerNorm.gamma", "blocks.*.norm1.weight"},
               {"encoder.layer.*.attention.output.LayerNorm.beta", "blocks.*.norm1.bias"},
               {"encoder.layer.*.attention.output.LayerNorm.*", "blocks.*.norm1.*"},
               {"encoder.layer.*.intermediate.dense.*", "blocks.*.up.*"},
               {"encoder.layer.*.output.dense.*", "blocks.*.down.*"},
               {"encoder.layer.*.output.LayerNorm.gamma", "blocks.*.norm2.weight"},
               {"encoder.layer.*.output.LayerNorm.beta", "blocks.*.norm2.bias"},
               {"encoder.layer.*.output.LayerNorm.*", "blocks.*.norm2.*"},
               {"pooler.dense.*", "pooler.*"},
               {"classifier.*", "head.*"},
               {"embeddings.position_ids", ""},  // 0, 1, 2, …: no weights
               {"cls.predictions.bias", ""},     // what it was trained for at first
               {"cls.predictions.decoder.*", ""},
               {"cls.predictions.transform.*.*", ""},
               {"cls.seq_relationship.*", ""}},
      .prefix = "bert."};
  return names;
}

// The sizes of the model in a file. How many heads it has is not seen there; the published ones
// have one for every 64 of the width. Throws: invalid_argument for a file of another model.
inline BertOptions bert_sizes(const std::string& path,
                              int64_t heads,
                              int64_t classes,
                              const muster::Peers& peers = {}) {
  const auto shapes = muster::weight_shapes(path, bert_names(), peers);
  for (const char* name : {"token.weight", "position", "kind.weight", "blocks.0.up.weight"}) {
    if (const auto found = shapes.find(name); found != shapes.end() && found->second.size() == 2)
      continue;
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        muster::cat("bert: expected the embeddings and layers of a BERT in '",
                                    path,
                                    "', got none for '",
                                    name,
                                    "'; give the weights of a BERT"));
  }
  BertOptions o{.vocabulary = shapes.at("token.weight")[0],
                .context = shapes.at("position")[0],
                .kinds = shapes.at("kind.weight")[0],
                .layers = 0,
                .width = shapes.at("token.weight")[1],
                .inner = shapes.at("blocks.0.up.weight")[0],
                .classes = classes};
  o.heads = heads > 0 ? heads : std::max<int64_t>(o.width / 64, 1);
  while (shapes.contains(muster::cat("blocks.", o.layers, ".qkv.weight")))
    ++o.layers;
  return o;
}

// Makes the model that a file is of, with a head for other classes, and reads all but the head.
// Throws: as load_weights, and as bert_sizes. Collective: yes.
inline Bert load_bert(const std::string& path,
                      int64_t heads,
                      int64_t classes,
                      const muster::Peers& peers = {}) {
  Bert net(bert_sizes(path, heads, classes, peers));
  const auto is_body = [](const std::string& name) {
    return !name.starts_with("head.");
  };
  muster::load_weights(*net, path, {.names = bert_names(), .only = is_body}, peers);
  return net;
}
