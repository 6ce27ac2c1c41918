// An optimizer's state as named tensors and its options as JSON, both keyed by parameter names, for
// SGD, Adam, AdamW, RMSprop, Adagrad and LBFGS. Called by checkpoint.h and sharded_checkpoint.h.
// (With torch::load a wrong shape shows only at the next step.)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/tensor_pieces.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

struct OptimizerSnapshot {
  std::string description;  // JSON: kind, and each group's options and parameter names
  // "<parameter>.<field>", such as "fc.weight.exp_avg"; steps are I64 scalars.
  NamedTensors tensors{};
};

// Whether the state can be saved: the class is one of those, or derived from one.
bool has_saved_kind(const torch::optim::Optimizer& optimizer);

// Throws: invalid_argument for a class that a program derives from one of those. It may have
// members of its own, which nothing here saves.
void require_plain(const torch::optim::Optimizer& optimizer);

// The tensors share the optimizer's memory. Throws: invalid_argument for another kind of optimizer,
// or a parameter that is not the model's.
OptimizerSnapshot snapshot_optimizer(const torch::nn::Module& model,
                                     torch::optim::Optimizer& optimizer);

// Checks that the state fits: kind, groups, parameters, fields, dtypes and shapes. Throws:
// invalid_argument naming the first difference, with both shapes if it is one.
void check_optimizer(const torch::nn::Module& model,
                     torch::optim::Optimizer& optimizer,
                     const std::string& description,
                     const TensorEntries& entries);

// Replaces state and options (including the learning rate), as PyTorch's load_state_dict does.
// Throws: as check_optimizer; then nothing is changed.
void restore_optimizer(const torch::nn::Module& model,
                       torch::optim::Optimizer& optimizer,
                       OptimizerSnapshot snapshot);

// The options of each group by name, as they are written, but for the learning rate. Empty for
// LBFGS.
std::vector<StringMap> options_of_groups(torch::optim::Optimizer& optimizer);

// Installs a state that was built before, which cannot fail.
using InstallState = std::function<void()>;

// Fills a piece's tensor with its saved elements, or replaces it by such a tensor.
using FetchTensor = std::function<void(TensorPiece& piece)>;

// The same where `fetch` brings the tensors of `entries`, one after the other, in an order that is
// the same on all ranks. Throws: also whatever `fetch` throws.
void restore_optimizer(const torch::nn::Module& model,
                       torch::optim::Optimizer& optimizer,
                       const std::string& description,
                       const TensorEntries& entries,
                       const FetchTensor& fetch);

// The same for an optimizer whose parameters are pieces of a model's: its state is divided like
// them.
struct OptimizerPieces {
  std::string description;  // of this rank's parameters
  TensorPieces pieces;
};

// Throws: as snapshot_optimizer.
OptimizerPieces optimizer_pieces(const TensorPieces& parameters,
                                 torch::optim::Optimizer& optimizer);

// The description for all ranks together. Throws: invalid_argument for optimizers of two kinds.
std::string merge_descriptions(const Strings& descriptions);

// Checks that both have the same parameters in the same groups, in any order. Throws:
// invalid_argument.
void check_same_parameters(const std::string& description, const std::string& saved);

// Builds the state that restores the optimizer, and returns a function that installs it. Does not
// compare names. Throws: as check_optimizer, and whatever `fetch` throws; then nothing is changed.
InstallState prepare_optimizer(const TensorPieces& parameters,
                               torch::optim::Optimizer& optimizer,
                               const std::string& description,
                               const TensorEntries& entries,
                               const FetchTensor& fetch);

}  // namespace muster
