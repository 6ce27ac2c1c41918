// An optimizer's state as named tensors and its options as JSON, both keyed by parameter names, for SGD,
// Adam, AdamW, RMSprop, Adagrad and LBFGS. Called by checkpoint.h and sharded_checkpoint.h. (torch::load
// finds a wrong shape only at the next step.)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/tensor_pieces.h"

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
                       OptimizerSnapshot snapshot);

// The same of an optimizer whose parameters are pieces of a model's: its state is divided as they are.
struct OptimizerPieces {
  std::string description;  // of this rank's parameters
  TensorPieces pieces;
};

// Throws: as snapshot_optimizer.
OptimizerPieces optimizer_pieces(const TensorPieces& parameters, torch::optim::Optimizer& optimizer);

// The description of all ranks' together. Throws: invalid_argument for optimizers of two kinds.
std::string merge_descriptions(const std::vector<std::string>& descriptions);

// Whether two have the same parameters in the same groups, in whatever order. Throws: invalid_argument.
void check_same_parameters(const std::string& description, const std::string& saved);

// Fills a piece's tensor with its elements of what was saved, or puts another like it in its place.
using FetchTensor = std::function<void(TensorPiece& piece)>;

// Makes the state that restores the optimizer, and returns what puts it in place. Names are not compared.
// Throws: as check_optimizer, and what `fetch` throws; nothing is changed then.
std::function<void()> prepare_optimizer(const TensorPieces& parameters, torch::optim::Optimizer& optimizer,
                                        const std::string& description, const TensorEntries& entries,
                                        const FetchTensor& fetch);

}  // namespace muster
