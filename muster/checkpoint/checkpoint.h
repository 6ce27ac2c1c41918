// Saving and resuming training. Rank 0 writes `checkpoints/step-N/{manifest.json, model.safetensors,
// optim.safetensors}` aside and renames it, so that a checkpoint is whole or not there; the others need no
// access to its disk. Called by programs and by the Context.
//
//   auto resumed = load_latest_checkpoint(dir, {*model, &optimizer}, ctx.process_group());
//   ...
//   save_checkpoint({.directory = dir}, {*model, &optimizer}, position, ctx.process_group());
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "muster/checkpoint/manifest.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/peers.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace muster {

struct CheckpointOptions {
  std::string directory = {};                    // holds the step-N folders
  int keep_last = 3;                             // older ones are removed; 0 keeps all
  std::map<std::string, std::string> user = {};  // kept in the manifest
  std::string parent = {};                       // Manifest::parent
  std::vector<SerialRange> abandoned = {};       // Manifest::abandoned
  // Which checkpoints in the directory are counted and removed; all are without. Those of others stay.
  std::function<bool(const Manifest&)> is_own = {};
};

// What is saved and loaded: parameters and buffers, the optimizer's state and options. Give the bare module,
// not a wrapped one, so that names stay the same with and without DDP.
struct TrainingState {
  torch::nn::Module& model;
  torch::optim::Optimizer* optimizer = nullptr;
  NamedTensors parts = {};  // whatever else; rank 0's are saved
};

// What is loaded into, or refused.
struct LoadOptions {
  // The only one that counts, of the folder: "step-100". Empty: all.
  std::string only = {};
  // Whether a checkpoint counts at all; all do without.
  std::function<bool(const Manifest&)> accept = {};
  // Throws where the saved parts do not fit; then nothing is changed.
  std::function<void(const TensorEntries&)> check_parts = {};
};

struct LoadedCheckpoint {
  std::string path;                         // on rank 0's host
  int64_t serial = 0;                       // Manifest::serial
  std::vector<SerialRange> abandoned = {};  // Manifest::abandoned
  TrainingPosition position;
  int world_size = 1;  // of the job that saved it
  std::map<std::string, std::string> user;
  // Reads the tensors of TrainingState::parts whose names begin with `prefix`, and leaves the prefix out.
  // Each is on every rank, in the memory of the tensor of that name in `into` where there is one of its type
  // and shape on the CPU. Collective: yes.
  std::function<NamedTensors(const std::string& prefix, const NamedTensors& into)> read_parts = {};
};

// "…/step-120 was saved in training on 1438 samples, and the data set has 500", for a program that goes on
// with other data than it began with. Empty: it is as large, or the checkpoint does not say.
std::string describe_other_data(const LoadedCheckpoint& loaded, int64_t dataset_size);

// Saves `state` as step position.step; one of the same step is replaced. Older ones are removed only after
// the new one was read back and found whole. When it fails, all checkpoints from before are as they were.
// Collective: yes; every rank throws when rank 0 fails. Returns the checkpoint's path.
// Throws: unavailable when there is no space, io when it cannot be written, invalid_argument for a tensor or
// optimizer that cannot be saved.
std::string save_checkpoint(const CheckpointOptions& options, const TrainingState& state,
                            const TrainingPosition& position, const Peers& peers = {});

// Loads the checkpoint that was saved last and is whole; damaged ones are warned of and passed over. Nothing
// when there is none at all. Names, dtypes and shapes are compared on every rank before anything is changed.
// Collective: yes; when what was saved does not fit on one rank, every rank throws and nothing is changed.
// Throws: io when there are checkpoints but none is whole (the message says why for each); invalid_argument
// when model or optimizer differ from what was saved (the first difference is named).
std::optional<LoadedCheckpoint> load_latest_checkpoint(const std::string& directory,
                                                       const TrainingState& state, const Peers& peers = {},
                                                       const LoadOptions& options = {});

// Loads one checkpoint, e.g. "checkpoints/step-120".
// Collective: yes.
// Throws: as above, and io or invalid_argument when it is damaged or no checkpoint.
LoadedCheckpoint load_checkpoint(const std::string& path, const TrainingState& state,
                                 const Peers& peers = {});

}  // namespace muster
