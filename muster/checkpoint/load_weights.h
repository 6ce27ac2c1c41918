// Loads weights into a model by name, from a safetensors file, a folder as model hubs have it, or a
// checkpoint.
//
//   muster::load_weights(*net, "llama/", {.name = [](std::string name) { return name.substr(6); }});
//   // A backbone with a head of its own:
//   auto loaded = muster::load_weights(*backbone, "resnet.safetensors", {.partial = true});
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
  // Maps a name in the file to the model's; an empty result skips the tensor. Default: the same name.
  std::function<std::string(const std::string& name)> name = {};
  // Allow tensors of the model that the file lacks (they stay as they are), and tensors of the file that the
  // model lacks.
  bool partial = false;
};

struct LoadedWeights {
  std::vector<std::string> loaded;      // names in the model
  std::vector<std::string> missing;     // only in the model
  std::vector<std::string> unexpected;  // only in the file, by its names; without skipped ones
};

// Sets parameters and buffers to the saved tensors of the same names, converted to their type and device.
// Rank 0 reads, one tensor at a time; the others need no access to its disk. Shapes and names are compared
// before anything is changed.
// Collective: yes.
// Throws: on every rank, io; invalid_argument for a malformed file, a shape that differs, two names that
// become one, nothing to load at all, and without `partial` for missing or unexpected tensors (names the
// first of each).
LoadedWeights load_weights(torch::nn::Module& model, const std::string& path,
                           const LoadWeightsOptions& options = {}, const Peers& peers = {});

}  // namespace muster
