// An optimizer's state as named tensors and its options as JSON, both keyed by parameter names, for SGD,
// Adam, AdamW, RMSprop and Adagrad. Called by checkpoint.h. (torch::load finds a wrong shape only at the next
// step.)
#pragma once

#include <string>

#include "muster/checkpoint/model_state.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

struct OptimizerSnapshot {
  std::string description;  // JSON: kind, and of each group its options and its parameters' names
  NamedTensors tensors;     // "<parameter>.<field>", e.g. "fc.weight.exp_avg"; steps are I64 scalars
};

// The tensors share memory with the optimizer's.
// Throws: invalid_argument for another kind of optimizer, or a parameter that is not the model's.
OptimizerSnapshot snapshot_optimizer(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// Whether such a state fits: kind, groups, parameters, fields, dtypes and shapes.
// Throws: invalid_argument naming the first difference, with both shapes where it is one.
void check_optimizer(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                     const std::string& description, const TensorEntries& entries);

// Replaces state and options (the learning rate too), as PyTorch's load_state_dict does. Nothing is changed
// when it throws.
// Throws: as check_optimizer.
void restore_optimizer(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                       const OptimizerSnapshot& snapshot);

}  // namespace muster
