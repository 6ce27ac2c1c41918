// Saves and resumes training. Rank 0 writes `checkpoints/step-N/{manifest.json, model.safetensors,
// optim.safetensors}` under a temporary name and renames it, so that a checkpoint is complete or
// absent. The other ranks need no access to its disk. Called by programs and by the Context.
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
#include <vector>

#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/peers.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace muster {

struct SaveOptions {
  std::string directory{};                    // holds the step-N folders
  int keep_last = 3;                          // older ones are removed; 0 keeps all
  std::map<std::string, std::string> user{};  // kept in the manifest
  std::string parent{};                       // Manifest::parent
  std::vector<SerialRange> abandoned{};       // Manifest::abandoned
  std::optional<CheckpointMetric> metric{};   // Manifest::metric
  std::string best{};                         // the path of a checkpoint that stays
  // Selects the checkpoints in the directory that are counted and removed; others are kept.
  // Default: all.
  std::function<bool(const Manifest&)> is_own{};
};

// A training as it is saved and loaded: parameters and buffers, the optimizer's state and options.
// Pass the module itself, not its wrapper, so that names are the same with and without DDP.
struct TrainingState {
  torch::nn::Module& model;
  torch::optim::Optimizer* optimizer = nullptr;
  NamedTensors parts{};  // anything else; rank 0's are saved
  // Whether `parts` have the members of an optimizer's class that is derived from torch::optim's.
  bool has_members = false;
};

// Which checkpoints may be loaded.
struct LoadOptions {
  // The only checkpoint of the folder to consider: "step-100". Empty: all.
  std::string only{};
  // Whether a checkpoint may be loaded. Default: all may.
  std::function<bool(const Manifest&)> accept{};
  // Throws if the saved parts do not fit; then nothing is changed.
  std::function<void(const TensorEntries&)> check_parts{};
};

// Reads the tensors of TrainingState::parts whose names start with `prefix`, and strips the prefix.
// Every rank gets each tensor; it reuses the memory of the tensor of that name in `into` if that is
// on the CPU and has its type and shape. Collective: yes.
using ReadParts = std::function<NamedTensors(const std::string& prefix, const NamedTensors& into)>;

struct LoadedCheckpoint {
  std::string path;                      // on rank 0's host
  int64_t serial = 0;                    // Manifest::serial
  std::vector<SerialRange> abandoned{};  // Manifest::abandoned
  TrainingPosition position;
  int world_size = 1;  // of the job that saved it
  std::map<std::string, std::string> user;
  ReadParts read_parts{};
};

// Saves `state` as step position.step, replacing a checkpoint of the same step. Removes older ones
// only after the new one has been read back and verified, and never the best of them. If saving
// fails, all earlier checkpoints are unchanged. Returns the checkpoint's path. Collective: yes;
// every rank throws if rank 0 fails. Throws: unavailable if there is no space, io if it cannot be
// written, invalid_argument for a tensor or optimizer that cannot be saved, or a class derived from
// such an optimizer's.
std::string save_checkpoint(const SaveOptions& options,
                            const TrainingState& state,
                            const TrainingPosition& position,
                            const Peers& peers = {});

// Loads the newest complete checkpoint; warns of damaged ones and skips them. Returns nothing if
// there are no checkpoints. Names, dtypes and shapes are compared on every rank before anything is
// changed. Collective: yes; if the saved state does not fit on one rank, every rank throws and
// nothing is changed. Throws: io if there are checkpoints but none is complete (the message gives a
// reason for each); invalid_argument if model or optimizer differ from what was saved (names the
// first difference).
std::optional<LoadedCheckpoint> load_latest_checkpoint(const std::string& directory,
                                                       const TrainingState& state,
                                                       const Peers& peers = {},
                                                       const LoadOptions& options = {});

// Loads one checkpoint, such as "checkpoints/step-120".
// Collective: yes.
// Throws: as above, and io or invalid_argument if it is damaged or not a checkpoint.
LoadedCheckpoint load_checkpoint(const std::string& path,
                                 const TrainingState& state,
                                 const Peers& peers = {});

}  // namespace muster
