// The learning rates that a program has given an optimizer or a schedule, and those that a
// checkpoint brings. Used only by Checkpoints.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/base/lists.h"

namespace muster {

// The rates of an optimizer's groups, or a schedule's initial ones for them.
struct LearningRates {
  std::string name;
  const torch::optim::Optimizer* optimizer = nullptr;  // of the groups
  std::function<Doubles()> get{};
  std::function<void(const Doubles&)> set{};
};

LearningRates rates_of_optimizer(const std::string& name, torch::optim::Optimizer& optimizer);

// The program's rates, while a checkpoint is loaded.
class ProgramsRates {
 public:
  explicit ProgramsRates(std::vector<LearningRates> rates);
  // Sets them again.
  void restore() const;
  // Logs where the present ones differ.
  void tell_differences() const;

 private:
  std::vector<LearningRates> rates_;
  std::vector<Doubles> before_;
};

}  // namespace muster
