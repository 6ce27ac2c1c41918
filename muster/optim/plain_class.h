// Tells the optimizers of the libraries from classes that a program derives from them, which may
// have members and a step of their own.
#pragma once

#include <torch/optim/optimizer.h>

#include "muster/base/torch_names.h"

namespace muster::optim {

// Whether the optimizer's class is one of torch::optim's or muster::optim's, and none derived from
// it.
bool is_plain(const Optimizer& optimizer);

}  // namespace muster::optim
