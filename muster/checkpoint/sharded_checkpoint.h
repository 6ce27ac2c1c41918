// Checkpoints to which every rank writes a part, so that no rank has the whole model: for models
// whose parameters or optimizer state are divided over ranks. Data that several ranks share is
// written by one of them. They load on any number of ranks, divided in any way or not at all, and a
// checkpoint of checkpoint.h loads into divided models. Every rank must see the folder.
//
//   step-120/{manifest.json, model-00000-of-00004.safetensors, optim-00000-of-00004.safetensors,
//   parts.safetensors, ...}
//
// For ranks that train alone for some steps (own_pieces), these files hold the first rank's
// tensors. Each other rank adds its own: own-00001-model.safetensors, own-00001-optim.safetensors
// (saved_tensors.h).
//
// Called by Checkpoints (muster/train).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"

namespace muster {

// This rank's part of the training. All ranks with a piece of the same tensor use the same name.
struct ShardedState {
  struct Optimizer {
    torch::optim::Optimizer* optimizer;
    TensorPieces parameters;  // what the optimizer updates
  };
  TensorPieces model;
  std::optional<Optimizer> optimizer{};
  NamedTensors parts{};  // anything else; rank 0's are saved
  // Tensors among those, such as averages of the weights, that are divided over ranks too.
  struct Part {
    std::string prefix;  // of the names of these alone
    TensorPieces pieces;
  };
  std::vector<Part> parts_in_pieces{};
};

// The pieces that this rank writes, as agreed by all ranks.
struct ShardedPlan {
  TensorPieces model, optimizer, parts;
  // Each rank's own pieces, on all ranks but the first, whose pieces are above.
  TensorPieces own_model, own_optimizer, own_parts;
  std::string description;  // of all ranks' optimizer; empty if there is none
  uint64_t bytes = 0;       // of all ranks
};

// Divides the writing evenly. Collective: yes. Throws: invalid_argument, on every rank, for pieces
// with the same name that differ in type or shape, overlap, or leave a hole.
ShardedPlan plan_sharded_save(const ShardedState& state, ProcessGroup& group);

// Whether the checkpoint was written by the ranks of a plan_sharded_save.
bool is_sharded(const Manifest& manifest);

// Loads the folder's newest complete checkpoint, sharded or not; warns of damaged ones and skips
// them. Each rank reads its own elements directly into its tensors. Returns nothing if there is
// none. Collective: yes; if the saved state does not fit on one rank, every rank throws and nothing
// is changed. Throws: as load_latest_checkpoint; failed_precondition for a rank that does not see
// the folder.
std::optional<LoadedCheckpoint> load_latest_sharded(const std::string& directory,
                                                    const ShardedState& state,
                                                    ProcessGroup& group,
                                                    const LoadOptions& options = {});

}  // namespace muster
