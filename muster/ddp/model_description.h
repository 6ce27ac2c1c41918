// A model as text, for comparing it across ranks before anything is sent: names, shapes, types,
// strides where they are not the plain ones, and what is trained.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// One line a parameter or buffer, in registration order: "parameter fc1.weight: Float [10, 64]".
std::vector<std::string> describe_model(const torch::nn::Module& model);

// Throws on every rank alike: invalid_argument naming the first parameter or buffer that differs, and both
// sides. `what` says to ranks that call something else what this one compares. Collective: yes.
void check_same_model(const torch::nn::Module& model, ProcessGroup& group, const std::string& what);

}  // namespace muster
