// An optimizer's state from one rank to all.
#pragma once

#include "muster/comm/process_group.h"

namespace torch::optim {
class Optimizer;
}

namespace muster {

// State and options, as torch::save writes them: of any optimizer that can be saved, also where a rank has
// taken no step yet. Parameters must be alike on all ranks. Collective: yes. Blocking: yes; through memory of
// the host.
void broadcast_optimizer(torch::optim::Optimizer& optimizer, ProcessGroup& group, int root);

}  // namespace muster
