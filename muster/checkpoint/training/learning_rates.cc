// The program's rates are read before a checkpoint is loaded, and compared or set again afterwards.
#include "muster/checkpoint/training/learning_rates.h"

#include <utility>

#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/optimizer_parameters.h"

namespace muster {

// An optimizer without a schedule has its rates in its groups' options.
LearningRates rates_of_optimizer(const std::string& name, Optimizer& optimizer) {
  const auto get = [&optimizer] {
    return rates_of_groups(optimizer);
  };
  const auto set = [&optimizer](const Doubles& rates) {
    auto& groups = optimizer.param_groups();
    for (const size_t i : indices_of(groups))
      groups[i].options().set_lr(rates.at(i));
  };
  return {.name = name, .optimizer = &optimizer, .get = get, .set = set};
}

ProgramsRates::ProgramsRates(std::vector<LearningRates> rates) : rates_(std::move(rates)) {
  before_ = mapped(rates_, [&](const LearningRates& one) { return one.get(); });
}

void ProgramsRates::restore() const {
  for (const size_t i : indices_of(rates_))
    rates_[i].set(before_[i]);
}

// A person who has changed a rate and resumes would otherwise not see that it is ignored.
void ProgramsRates::tell_differences() const {
  for (const size_t i : indices_of(rates_)) {
    const auto now = rates_[i].get();
    if (now == before_[i])
      continue;
    log_info(
        "resume: '",
        rates_[i].name,
        "' goes on with the checkpoint's learning rate, ",
        join(now, ", "),
        "; the program gave ",
        join(before_[i], ", "),
        " (.new_learning_rates takes that); torch::optim's own schedulers count from 0 again, and "
        "a muster::Schedule that is added goes on");
  }
}

}  // namespace muster
