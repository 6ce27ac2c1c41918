// Checkpoints that every rank writes a part of, so that no rank holds the whole model: for models whose
// parameters or optimizer state are divided over ranks. What several ranks have alike, one of them writes.
// Loaded on any number of ranks that divide the model in any way, or not at all; and the other way round,
// a checkpoint of checkpoint.h loads into divided models. Every rank must see the folder.
//
//   step-120/{manifest.json, model-00000-of-00004.safetensors, optim-00000-of-00004.safetensors, ...}
//
// Of ranks that train alone for some steps (own_pieces) these have the first rank's, and each other rank
// writes its own beside: own-00001-model.safetensors, own-00001-optim.safetensors (saved_tensors.h).
//
// Called by Checkpoints (muster/train).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"

namespace muster {

// What this rank has of the training. Names are alike on all ranks that have a piece of the same tensor.
struct ShardedState {
  struct Optimizer {
    torch::optim::Optimizer* optimizer;
    TensorPieces parameters;  // what it updates
  };
  TensorPieces model;
  std::optional<Optimizer> optimizer = {};
  NamedTensors parts = {};  // whatever else; rank 0's are saved
};

// Which pieces this rank writes, as all ranks have agreed.
struct ShardedPlan {
  TensorPieces model, optimizer;
  // What is each rank's own, on all but the first: that one's is above.
  TensorPieces own_model, own_optimizer;
  std::string description;  // of all ranks' optimizer; empty without one
  uint64_t bytes = 0;       // of all ranks
};

// Divides the writing evenly. Collective: yes. Throws: invalid_argument on every rank for pieces of one name
// that differ in type or shape, overlap, or leave a hole.
ShardedPlan plan_sharded_save(const ShardedState& state, ProcessGroup& group);

// True for a checkpoint that plan_sharded_save's ranks wrote.
bool is_sharded(const Manifest& manifest);

// Loads the newest checkpoint in the folder that is whole, be it sharded or not; damaged ones are warned of
// and passed over. Each rank reads its own elements straight into its tensors. Nothing when there is none.
// Collective: yes; when what was saved does not fit on one rank, every rank throws and nothing is changed.
// Throws: as load_latest_checkpoint; failed_precondition for a rank that does not see the folder.
std::optional<LoadedCheckpoint> load_latest_sharded(const std::string& directory, const ShardedState& state,
                                                    ProcessGroup& group, const LoadOptions& options = {});

}  // namespace muster
