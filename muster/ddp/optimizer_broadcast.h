// Broadcasts an optimizer's state from one rank to all.
#pragma once

#include "muster/comm/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

// Sends state and options as torch::save writes them: for any optimizer that can be saved, even if
// a rank has not taken a step yet. Parameters must be equal on all ranks. Collective: yes.
// Blocking: yes; goes through host memory.
void broadcast_optimizer(torch::optim::Optimizer& optimizer, ProcessGroup& group, int root);

}  // namespace muster
