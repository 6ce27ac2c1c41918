// `muster plan --model`: the memory that a GPT's training needs on the plan's ranks, by each way of
// dividing it. The formulas are in placement/model_memory.h. Called by run.cc.
#pragma once

#include <functional>
#include <string>

#include "muster/placement/plan.h"

namespace CLI {
class App;
}

namespace muster {

struct PlanModelFlags {
  std::string model{};
  std::string device_memory{};
};

// --model and --device-memory.
void add_model_options(CLI::App* command, PlanModelFlags& flags);

// LaunchOptions::about_model; empty without --model. Throws: invalid_argument for flags that say
// nothing usable. The function throws it where no device's memory is known, and for mesh axes other
// than dp, pp, tp.
std::function<std::string(const Inventory&, const Plan&)> to_about_model(
    const PlanModelFlags& flags, bool json);

}  // namespace muster
