// Loads weights into a model by name, from a safetensors file, one of Python's torch.save, a folder
// as model hubs have it, or a checkpoint.
//
//   muster::load_weights(*net, "llama/", {.name = [](std::string name) {
//     return name.substr(6);
//   }});
//   // A backbone with a head of its own:
//   auto loaded = muster::load_weights(*backbone, "resnet.safetensors", {.partial = true});
//   // The averages of an Ema that was added to the checkpoints as "ema":
//   muster::load_weights(*net, checkpoints.best()->path, {.part = "ema"});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "muster/checkpoint/peers.h"
#include "muster/checkpoint/weight_names.h"

namespace torch::nn {
class Module;
}

namespace muster {

// Gives a tensor of the file by its name there. Throws: invalid_argument if there is none.
using WeightReader = std::function<at::Tensor(const std::string& name)>;

struct LoadWeightsOptions {
  // Of a checkpoint: loads the tensors of this part, by its name in Checkpoints::add, in place of
  // the model's weights. Of an Ema these are its averages.
  std::string part{};
  // Maps a name in the file to the model's; an empty result skips the tensor. Default: the same
  // name.
  std::function<std::string(const std::string& name)> name{};
  // A table of names, of which `name` gives the file's.
  WeightNames names{};
  // Makes the model's tensor `name` of any of the file's: transposed, cut, joined, scaled. An
  // undefined tensor: it is loaded as without. Called on rank 0 alone, twice a tensor: the first
  // time, for the shapes, with zeros.
  //   .make = [](const std::string& name, const muster::WeightReader& file) -> at::Tensor {
  //     if (name == "query.weight") return file("c_attn.weight").chunk(3, 1)[0].t();
  //     if (name == "head.weight") return file("table.weight");
  //     return {};
  //   }
  std::function<at::Tensor(const std::string& name, const WeightReader& file)> make{};
  // Which tensors to load, by the model's names. Others stay as they are, whether or not the file
  // has them. Default: all.
  std::function<bool(const std::string& name)> only{};
  // Allow tensors of the model that the file lacks (they stay as they are), and tensors of the file
  // that the model lacks.
  bool partial = false;
};

struct LoadedWeights {
  std::vector<std::string> loaded;      // names in the model
  std::vector<std::string> missing;     // only in the model
  std::vector<std::string> unexpected;  // only in the file, by its names; without skipped ones
};

// Sets parameters and buffers to the saved tensors of the same names, converted to their type and
// device. Rank 0 reads, one tensor at a time; the others need no access to its disk. Shapes and
// names are compared before anything is changed. A tensor that the model has under several names
// may have one of them in the file, and a BatchNorm's num_batches_tracked may be missing, as in
// PyTorch. Collective: yes. Throws: on every rank, io; invalid_argument for a malformed file, a
// shape that differs, two names that become one, nothing to load at all, without `partial` for
// missing or unexpected tensors (names the first of each), for whole numbers or scaled fp8 where
// the model has others (they are quantized: `make` can scale them), for a number that the model's
// type has not (1e5 in fp16, 0.5 in whole numbers), and for a shared tensor with two contents.
LoadedWeights load_weights(torch::nn::Module& model,
                           const std::string& path,
                           const LoadWeightsOptions& options = {},
                           const Peers& peers = {});

// The shapes that the model's tensors have in a file, to make the model by. Those that the table
// leaves out are not among them. Rank 0 reads. Collective: yes. Throws: as load_weights.
using WeightShapes = std::map<std::string, std::vector<int64_t>>;
WeightShapes weight_shapes(const std::string& path,
                           const WeightNames& names = {},
                           const Peers& peers = {});

}  // namespace muster
