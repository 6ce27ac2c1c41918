// The parameters that an optimizer steps on, as its checkers need them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

// An optimizer's parameters, in its groups' order.
Tensors parameters_of(Optimizer& optimizer);

// Its learning rates, by group.
Doubles rates_of_groups(const Optimizer& optimizer);

// An optimizer steps twice on what it has twice, as LibTorch's net->parameters() has a weight that
// two layers share. `owner` is who asks and `name_of` gives a parameter's name, for messages.
// Throws: invalid_argument.
void require_each_once(const std::string& owner,
                       const Tensors& parameters,
                       const std::function<std::string(const Tensor&)>& name_of);

// A parameter without a name: "a parameter of shape [2, 3]".
std::string shape_as_name(const Tensor& parameter);

}  // namespace muster
