// Weights from elsewhere into a model, by name: a safetensors file, a folder as hubs have it, a checkpoint.
//
//   muster::load_weights(*net, "llama/", {.name = [](std::string name) { return name.substr(6); }});
//   auto loaded = muster::load_weights(*backbone, "resnet.safetensors", {.partial = true});   // a head of
//   its own
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/checkpoint/peers.h"

namespace torch::nn {
class Module;
}

namespace muster {

struct LoadWeightsOptions {
  // The model's name for what the file calls so; an empty one leaves the tensor out. Without: the same name.
  std::function<std::string(const std::string& name)> name = {};
  // Whether the model may have tensors that the file lacks, which stay as they are, and the other way round.
  bool partial = false;
};

struct LoadedWeights {
  std::vector<std::string> loaded;      // names in the model
  std::vector<std::string> missing;     // in the model alone
  std::vector<std::string> unexpected;  // in the file alone, as the file names them; not those left out
};

// Parameters and buffers get what is saved under their names, converted to their type and device. Rank 0
// reads, a tensor at a time; the others need no access to its disk. Shapes and names are compared before
// anything is changed. Collective: yes. Throws, on every rank: io; invalid_argument for a file that breaks
// the format's rules, a shape that differs, two names that become one, nothing to load at all, and without
// `partial` for missing and unexpected ones (the first of each is named).
LoadedWeights load_weights(torch::nn::Module& model, const std::string& path,
                           const LoadWeightsOptions& options = {}, const Peers& peers = {});

}  // namespace muster
