// Who sets the learning rates of an optimizer: a Schedule or a Plateau. A second one would take the
// first one's rates, of a warm-up say, for those that the optimizer was made with.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/torch_names.h"

namespace muster {

struct RateOwner {
  std::string kind;  // "Schedule"
  Doubles rates;     // of the groups, as it has set them last
};

// Makes the owner of the optimizer's rates. The optimizer is free again when the last copy of what
// is returned goes. Throws: failed_precondition if it has an owner whose rates it still has.
std::shared_ptr<RateOwner> own_rates(const Optimizer& optimizer, std::string kind);

}  // namespace muster
