// GPT-2 as it is published: the names of its weights, and the GPT of ../02_gpt that has its sizes.
#pragma once

#include <muster/base/error.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/load_weights.h>

#include <string>

#include "../02_gpt/gpt.h"

// The file's names, and the GPT's. Its linear layers were "Conv1D", which has matrices transposed.
inline const muster::WeightNames& gpt2_names() {
  using enum muster::WeightForm;
  static const muster::WeightNames names{
      .rows = {{"wte.weight", "token.weight"},
               {"lm_head.weight", "token.weight"},  // the head's are the same weights
               {"wpe.weight", "position"},
               {"h.*.ln_1.*", "blocks.*.norm1.*"},
               {"h.*.attn.c_attn.*", "blocks.*.qkv.*", transposed},
               {"h.*.attn.c_proj.*", "blocks.*.mix.*", transposed},
               {"h.*.ln_2.*", "blocks.*.norm2.*"},
               {"h.*.mlp.c_fc.*", "blocks.*.up.*", transposed},
               {"h.*.mlp.c_proj.*", "blocks.*.down.*", transposed},
               {"ln_f.*", "norm.*"},
               {"h.*.attn.bias", ""},  // which tokens are earlier: no weights
               {"h.*.attn.masked_bias", ""}},
      .prefix = "transformer."};
  return names;
}

// The sizes of the model in a file. How many heads it has is not seen there; the published ones
// have one for every 64 of the width. Throws: invalid_argument for a file of another model.
inline GptOptions gpt2_sizes(const std::string& path,
                             int64_t heads,
                             const muster::Peers& peers = {}) {
  const auto shapes = muster::weight_shapes(path, gpt2_names(), peers);
  for (const char* name : {"token.weight", "position"}) {
    if (const auto found = shapes.find(name); found != shapes.end() && found->second.size() == 2)
      continue;
    throw muster::Error(muster::ErrorCode::invalid_argument,
                        muster::cat("gpt2: expected the matrices wte.weight and wpe.weight in '",
                                    path,
                                    "', got none for '",
                                    name,
                                    "'; give the weights of a GPT-2"));
  }
  int64_t layers = 0;
  while (shapes.contains(muster::cat("blocks.", layers, ".qkv.weight")))
    ++layers;
  const int64_t width = shapes.at("token.weight")[1];
  return {.vocabulary = shapes.at("token.weight")[0],
          .layers = layers,
          .heads = heads > 0 ? heads : width / 64,
          .width = width,
          .context = shapes.at("position")[0],
          .tied = true,
          .gelu = "tanh"};
}

// Reads the model on rank 0, for all. Throws: as load_weights, and as gpt2_sizes. Collective: yes.
inline Gpt load_gpt2(const std::string& path, int64_t heads, const muster::Peers& peers = {}) {
  Gpt net(gpt2_sizes(path, heads, peers));
  muster::load_weights(*net, path, {.names = gpt2_names()}, peers);
  return net;
}
