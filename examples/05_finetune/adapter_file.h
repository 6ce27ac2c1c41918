// A GPT-2's adapters as Python's peft has them: a safetensors file, and a file that says of what
// rank they are and of which layers.
#pragma once

#include <muster/base/error.h>
#include <muster/base/fd.h>
#include <muster/base/strings.h>
#include <muster/checkpoint/load_weights.h>
#include <muster/checkpoint/save_weights.h>

#include <map>
#include <string>
#include <vector>

#include "lora.h"

inline const muster::WeightNames& adapter_names() {
  static const muster::WeightNames names{
      .rows = {{"base_model.model.transformer.h.*.attn.c_attn.*.weight", "blocks.*.qkv.*.weight"},
               {"base_model.model.transformer.h.*.attn.c_proj.*.weight", "blocks.*.mix.*.weight"},
               {"base_model.model.transformer.h.*.mlp.c_fc.*.weight", "blocks.*.up.*.weight"},
               {"base_model.model.transformer.h.*.mlp.c_proj.*.weight", "blocks.*.down.*.weight"}}};
  return names;
}

// Throws: as load_weights. Collective: yes.
inline void load_adapter(Gpt& net, const std::string& path, const muster::Peers& peers = {}) {
  muster::load_weights(*net, path, {.names = adapter_names(), .only = is_adapter}, peers);
}

// Writes the folder that peft's PeftModel.from_pretrained takes. `base` is where its base model is.
// Throws: as save_weights. Collective: yes.
inline void save_adapter(const Gpt& net,
                         const std::string& folder,
                         const std::string& base,
                         const LoraOptions& options,
                         const muster::Peers& peers = {}) {
  muster::save_weights(*net,
                       folder + "/adapter_model.safetensors",
                       {.names = adapter_names(), .only = is_adapter, .replace = true},
                       peers);
  if (peers.rank() != 0)
    return;
  const std::map<std::string, std::string> published = {
      {"qkv", "c_attn"}, {"mix", "attn.c_proj"}, {"up", "c_fc"}, {"down", "mlp.c_proj"}};
  std::vector<std::string> layers;
  for (const std::string& layer : options.layers)
    layers.push_back(published.at(layer));
  muster::write_file(folder + "/adapter_config.json",
                     muster::cat(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": )",
                                 options.rank,
                                 R"(, "lora_alpha": )",
                                 options.alpha,
                                 R"(, "fan_in_fan_out": true, "bias": "none", )",
                                 R"("base_model_name_or_path": ")",
                                 base,
                                 R"(", "target_modules": [")",
                                 muster::join(layers, R"(", ")"),
                                 "\"]}\n"));
}
