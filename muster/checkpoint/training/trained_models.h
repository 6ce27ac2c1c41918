// The models and optimizers of a training, as they were added to Checkpoints: whole, or sharded
// over the ranks. Used only by Checkpoints.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/sharded_checkpoint.h"
#include "muster/checkpoint/training/delegating_optimizer.h"
#include "muster/checkpoint/training/resumed_objects.h"

namespace muster {

// The members that an optimizer's class may have when it is derived from torch::optim's.
enum class OwnMembers { unsaved, in_a_part };

class TrainedModels {
 public:
  using NamedOptimizer = std::pair<std::string, Optimizer*>;

  void add(const std::string& name, ModulePtr model);
  // Throws: as check_pieces.
  void add(const std::string& name, TensorPieces model);
  // Throws: invalid_argument for an optimizer with one parameter twice, and one whose state cannot
  // be saved, as where its class has `members` that nobody saves.
  void add(const std::string& name, Optimizer& optimizer, OwnMembers members);
  // The optimizer's parameters are these pieces. Throws: as check_pieces.
  void shard_optimizer(TensorPieces parameters);
  // The optimizer is the part of another one.
  void delegate(DelegatingOptimizer delegating) { delegating_ = std::move(delegating); }

  bool contains(const std::string& name) const;
  bool has_optimizer(const std::string& name) const;
  const std::vector<NamedOptimizer>& optimizers() const { return optimizers_; }
  // The optimizer that a program knows, where `optimizer` may be its part.
  const Optimizer* outer(const Optimizer* optimizer) const;

  // Of the models' parameters and buffers, as the modules or the pieces have them.
  Addresses addresses_of_tensors() const;

  // Whether each rank has but a part of a model or of an optimizer's parameters.
  bool is_sharded() const { return !sharded_models_.empty() || sharded_parameters_.has_value(); }

  // The model, or one that holds them all. Throws: failed_precondition without any.
  const ModulePtr& joined();

  // The state that is saved and loaded, without parts. An optimizer is there if it is the only one.
  // Throws: as joined(); the second failed_precondition too for several models or optimizers.
  TrainingState whole_state();
  ShardedState sharded_state() const;
  // Throws: invalid_argument for what no save would take: a tensor of a kind that no file can have,
  // or an optimizer with a parameter that no model names. Each rank looks at its own.
  void check_savable();
  // Warns once of buffers that a model has got since its pieces were made: on the first rank, and
  // on whichever has a stage.
  void warn_of_other_buffers(bool is_first_rank) const;

  // A delegating optimizer's options, before a save and after a load. Otherwise they do nothing.
  void options_to_part() const;
  void options_from_part() const;

 private:
  std::string name_of(const Tensor& parameter) const;

  std::vector<std::pair<std::string, ModulePtr>> models_;
  ModulePtr joined_;  // null until joined() is asked for it
  std::vector<NamedOptimizer> optimizers_;
  std::vector<std::pair<std::string, TensorPieces>> sharded_models_;
  std::optional<TensorPieces> sharded_parameters_;
  DelegatingOptimizer delegating_;
};

}  // namespace muster
