// Ranks that average their gradients stay alike only if they step at the same rates. A schedule or
// Plateau that follows each rank's own loss makes them drift apart. Used only by step.cc.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>

#include "muster/comm/process_group.h"
#include "muster/train/several.h"

namespace muster {

// Compares the learning rates of all groups. `place` is for the message.
// Collective: yes. Throws: failed_precondition on every rank if they differ.
void expect_same_rates(ProcessGroup& group, const Optimizers& optimizers, const std::string& place);

}  // namespace muster
