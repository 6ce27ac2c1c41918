// The options that a program has given its optimizers, such as weight_decay, and those that a
// checkpoint brings. Learning rates are told apart (learning_rates.h). Used only by Checkpoints.
#pragma once

#include <vector>

#include "muster/base/strings.h"
#include "muster/checkpoint/training/trained_models.h"

namespace muster {

class GivenOptions {
 public:
  // Reads them, before a checkpoint is loaded. `optimizers` must outlive this.
  explicit GivenOptions(const std::vector<TrainedModels::NamedOptimizer>& optimizers);
  // Logs where the present ones differ.
  void tell_differences() const;

 private:
  const std::vector<TrainedModels::NamedOptimizer>& optimizers_;
  std::vector<std::vector<StringMap>> before_;  // by optimizer and group
};

}  // namespace muster
