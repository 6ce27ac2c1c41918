// Converts an optimizer's state that is divided over ranks to that of a plain optimizer of whole
// parameters, for checkpoints that fit any number of ranks. Used by sharded_optimizer.h and
// fully_sharded.h. For SGD, Adam, AdamW, Adagrad, RMSprop.
#pragma once

#include <torch/optim/optimizer.h>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/sharded/flat_layout.h"

namespace muster {

// Parameters in one flat buffer, and this rank's pieces of them, which its optimizer has.
struct OptimizerParts {
  const FlatLayout& layout;
  const Tensors& parameters;  // `whole`'s
  const FlatPieces& pieces;
  const Tensors& tensors;     // `part`'s
  at::TensorOptions options;  // of `tensors`, also if this rank has none
};

// Gives `whole` the state of all ranks' `part`s. Collective: yes. Throws: invalid_argument for
// optimizers of two kinds, or of an unsupported kind.
void gather_optimizer_state(const OptimizerParts& parts,
                            Optimizer& part,
                            Optimizer& whole,
                            ProcessGroup& group);
// Gives `part` its elements of the state of `whole`, which is the same on every rank. Throws: as
// above.
void divide_optimizer_state(const OptimizerParts& parts, Optimizer& part, Optimizer& whole);

// Copies the options (rates) of each group, if both have the same number of groups. The first
// throws as above.
void copy_group_options(Optimizer& from, Optimizer& to);
void copy_options_of_any(Optimizer& from, Optimizer& to);

}  // namespace muster
