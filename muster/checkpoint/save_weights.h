// Saves a model's weights as one safetensors file for others, under the names that they have for
// them. Checkpoints (checkpoint.h) are for going on with a training.
//
//   muster::save_weights(*net, "gpt2/model.safetensors", {.names = kGpt2}, ctx.process_group());
//   // Some of them:
//   muster::save_weights(*net, "adapter.safetensors", {.only = [](const std::string& name) {
//     return name.find("lora_") != std::string::npos;
//   }});
#pragma once

#include <functional>
#include <string>

#include "muster/checkpoint/files/safetensors_header.h"
#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/weight_names.h"

namespace torch::nn {
class Module;
}

namespace muster {

struct SaveWeightsOptions {
  // The table by which load_weights reads the file: names, transposed matrices, and parts of the
  // same size.
  WeightNames names{};
  // Which tensors of the model. By default: all.
  std::function<bool(const std::string& name)> only{};
  bool replace = false;  // an existing file
  // Python's transformers read no file without this one.
  Metadata metadata = {{"format", "pt"}};
};

// Rank 0 writes the file, durably, and whole or not at all, in a folder that it makes if need be.
// The other ranks need no access to its disk. A tensor that the model has under two names is
// written once. Collective: yes. Throws, on every rank: io if it cannot be written;
// invalid_argument if it exists and must not be replaced, for a row as check_weight_names, for a
// tensor that cannot be cut into its row's parts, for two tensors that become one, and for none at
// all; failed_precondition for divided parameters (FullySharded).
void save_weights(const torch::nn::Module& model,
                  const std::string& path,
                  const SaveWeightsOptions& options = {},
                  const Peers& peers = {});

}  // namespace muster
