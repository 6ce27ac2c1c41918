// A checkpoint replaces an optimizer's options, as PyTorch's load_state_dict does. A person who has
// changed one and resumes would otherwise not see that it is ignored.
#include "muster/checkpoint/training/given_options.h"

#include <string>

#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/checkpoint/optimizer_state.h"

namespace muster {

GivenOptions::GivenOptions(const std::vector<TrainedModels::NamedOptimizer>& optimizers)
    : optimizers_(optimizers) {
  for (const auto& [name, optimizer] : optimizers)
    before_.push_back(options_of_groups(*optimizer));
}

// Groups that differ alike are one line.
void GivenOptions::tell_differences() const {
  for (const size_t i : indices_of(optimizers_)) {
    const auto now = options_of_groups(*optimizers_[i].second);
    StringSet told;
    for (const size_t g : indices_of(now)) {
      for (const auto& [name, value] : now[g]) {
        const std::string& given = before_[i][g].at(name);
        const auto line = cat("resume: '",
                              optimizers_[i].first,
                              "' goes on with the checkpoint's ",
                              name,
                              ", ",
                              value,
                              "; the program gave ",
                              given,
                              " (set it after restore() to take that)");
        if (given != value && told.insert(line).second)
          log_info(line);
      }
    }
  }
}

}  // namespace muster
