// The example's model: a GPT, which gives every token of a sequence a guess at the one after it.
// Knows nothing of text, of training or of ranks.
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>

struct GptOptions {
  int64_t vocabulary = 0;  // tokens are 0 … vocabulary - 1
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;        // of a token's vector; the heads share it
  int64_t context = 64;       // the most tokens that are looked at
  bool tied = false;          // the head's weights are the token vectors
  std::string gelu = "none";  // how torch::gelu is approximated: GPT-2 was trained with "tanh"
};

// A linear layer of which a program can make a kind of its own, such as LoRA's
// (examples/05_finetune).
struct LayerImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  virtual torch::Tensor forward(const torch::Tensor& x) {
    return torch::nn::LinearImpl::forward(x);
  }
};
TORCH_MODULE(Layer);

// Throws: invalid_argument when no model can have these sizes.
inline GptOptions checked(const GptOptions& o) {
  const auto refuse = [](const std::string& rule_and_value, const char* next) {
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        muster::cat("gpt: expected ", rule_and_value, "; ", next));
  };
  if (std::min({o.vocabulary, o.layers, o.heads, o.width, o.context}) < 1) {
    refuse(muster::cat("sizes of at least 1, got vocabulary ",
                       o.vocabulary,
                       ", layers ",
                       o.layers,
                       ", heads ",
                       o.heads,
                       ", width ",
                       o.width,
                       ", context ",
                       o.context),
           "correct the one that is less");
  }
  if (o.width % o.heads != 0) {
    refuse(muster::cat(
               "a width that the heads divide, got width ", o.width, " and ", o.heads, " heads"),
           "change one of them");
  }
  return o;
}

// Every token looks back at those before it (attention), then thinks by itself (two linear layers).
struct GptBlockImpl : torch::nn::Module {
  explicit GptBlockImpl(const GptOptions& o)
      : heads(o.heads),
        gelu(o.gelu),
        norm1(torch::nn::LayerNormOptions({o.width})),
        qkv(o.width, 3 * o.width),
        mix(o.width, o.width),
        norm2(torch::nn::LayerNormOptions({o.width})),
        up(o.width, 4 * o.width),
        down(4 * o.width, o.width) {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("mix", mix);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto looked = x + attention(norm1(x));
    return looked + down(torch::gelu(up(norm2(looked)), gelu));
  }

  torch::Tensor attention(const torch::Tensor& x) {
    // [batch, length, 3 * width] to three of [batch, heads, length, width / heads]
    const auto parts =
        qkv(x).view({x.size(0), x.size(1), 3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const auto seen = torch::scaled_dot_product_attention(parts[0],
                                                          parts[1],
                                                          parts[2],
                                                          {},
                                                          /*dropout_p=*/0.0,
                                                          /*is_causal=*/true);
    return mix(seen.transpose(1, 2).flatten(2));
  }

  // By their names, for programs that replace some.
  std::map<std::string, std::reference_wrapper<Layer>> layers() {
    return {{"qkv", qkv}, {"mix", mix}, {"up", up}, {"down", down}};
  }

  int64_t heads;
  std::string gelu;
  torch::nn::LayerNorm norm1;
  Layer qkv, mix;
  torch::nn::LayerNorm norm2;
  Layer up, down;
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  // Throws: as checked(). Sizes as in `o`; weights by torch's generator, so torch::manual_seed
  // decides them.
  explicit GptImpl(const GptOptions& o)
      : options(checked(o)),
        token(o.vocabulary, o.width),
        norm(torch::nn::LayerNormOptions({o.width})) {
    register_module("token", token);
    position = register_parameter("position", torch::empty({o.context, o.width}));
    for (int64_t i = 0; i < o.layers; ++i)
      blocks->push_back(GptBlock(o));
    register_module("blocks", blocks);
    register_module("norm", norm);
    if (!o.tied) {
      head = register_module(
          "head", torch::nn::Linear(torch::nn::LinearOptions(o.width, o.vocabulary).bias(false)));
    }
    initialize();
  }

  // Shapes: tokens [batch, length] int64, length at most the context; gives logits [batch, length,
  // vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens) {
    TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) <= options.context,
                "gpt: expected tokens [batch, length of at most ",
                options.context,
                "], got ",
                tokens.sizes(),
                "; cut them");
    auto x = embed(tokens);
    for (const auto& block : *blocks)
      x = block->as<GptBlock>()->forward(x);
    return guess(x);
  }

  // What comes before the blocks, and after them.
  torch::Tensor embed(const torch::Tensor& tokens) {
    return token(tokens) + position.narrow(0, 0, tokens.size(1));
  }
  torch::Tensor guess(const torch::Tensor& x) {
    return options.tied ? torch::linear(norm(x), token->weight) : head(norm(x));
  }

  // GPT-2's. What the blocks add up grows with their number, so what each adds begins smaller.
  void initialize() {
    const double added = 1 / std::sqrt(2.0 * static_cast<double>(options.layers));
    for (auto& item : named_parameters()) {
      const std::string& name = item.key();
      if (name.ends_with("bias"))
        torch::nn::init::zeros_(*item);
      if (item->dim() < 2)
        continue;  // biases, and the norms' scales, which stay 1
      const bool adds = name.ends_with("mix.weight") || name.ends_with("down.weight");
      torch::nn::init::normal_(*item, 0, adds ? 0.02 * added : 0.02);
    }
  }

  GptOptions options;
  torch::nn::Embedding token;
  torch::Tensor position;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Gpt);

// The mean over all tokens, in nats. Shapes: logits as of forward, targets [batch, length] int64.
inline torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

// `tokens` and `count` more, each drawn by the model's guess; a temperature below 1 prefers the
// likely ones. torch::manual_seed decides the draws. Shapes: tokens [length of at least 1] int64,
// on the model's device.
inline torch::Tensor sample(Gpt& model, torch::Tensor tokens, int64_t count, double temperature) {
  const torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = std::min(tokens.size(0), model->options.context);
    const auto logits =
        model(tokens.narrow(0, tokens.size(0) - length, length).unsqueeze(0)).select(1, -1)[0];
    // On the CPU, so that one seed draws alike whatever the device.
    const auto likely = torch::softmax(logits.cpu().to(torch::kDouble) / temperature, 0);
    const auto next = torch::multinomial(likely, 1);
    tokens = torch::cat({tokens, next.to(tokens.device())});
  }
  return tokens;
}
