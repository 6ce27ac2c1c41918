// Lists of parameters that name each one once. LibTorch's net->parameters() has a weight that two
// layers share twice, and its optimizers would take two steps on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "muster/base/tensors.h"

namespace muster::optim {

using ParameterGroups = std::vector<torch::optim::OptimizerParamGroup>;

// The tensors in their order, without repetitions.
Tensors each_once(const Tensors& tensors);

// Takes repetitions out of each group. `where` says who asks, such as " (rank 1)". Throws:
// invalid_argument, in the name of `owner`, for a parameter that is in two groups.
void keep_each_once(const std::string& owner,
                    ParameterGroups& groups,
                    const std::string& where = {});

// A member of an optimizer's class, made when its base has the groups.
struct EachOnce {
  explicit EachOnce(ParameterGroups& groups) { keep_each_once("optimizer", groups); }
};

}  // namespace muster::optim
