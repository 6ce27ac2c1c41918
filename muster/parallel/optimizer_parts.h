// An optimizer's state that is divided over ranks, as the plain optimizer's of whole parameters: for
// checkpoints that fit any number of ranks. Used by sharded_optimizer.h and fully_sharded.h. SGD, Adam,
// AdamW, Adagrad, RMSprop.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "muster/parallel/flat_layout.h"

namespace muster {

// Parameters that lie in one flat buffer, and this rank's pieces of them, which its optimizer has.
struct OptimizerParts {
  const FlatLayout& layout;
  const std::vector<at::Tensor>& parameters;  // `whole`'s
  const std::vector<FlatPiece>& pieces;
  const std::vector<at::Tensor>& tensors;  // `part`'s
  at::TensorOptions options;               // theirs, also where this rank has none
};

// `whole` gets the state of all ranks' `part`s. Collective: yes. Throws: invalid_argument for optimizers of
// two kinds, or another kind.
void gather_optimizer_state(const OptimizerParts& parts, torch::optim::Optimizer& part,
                            torch::optim::Optimizer& whole, ProcessGroup& group);
// `part` gets its elements of the state of `whole`, which is the same on every rank. Throws: as above.
void divide_optimizer_state(const OptimizerParts& parts, torch::optim::Optimizer& part,
                            torch::optim::Optimizer& whole);

// The options (rates) of each group, where both have as many groups.
void copy_group_options(torch::optim::Optimizer& from, torch::optim::Optimizer& to);

}  // namespace muster
