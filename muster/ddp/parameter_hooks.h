// Calls a function whenever a gradient has been added to some parameters, through any accumulator.
// torch::load, set_() and a conversion to another type and back each give a parameter another
// accumulator, where hooks on the earlier one (gradient_hooks.h) and c10d::Reducer hear nothing. An
// undefined gradient is not heard of here.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"

namespace muster {

// Gets the parameter's index, in one of autograd's threads.
using OnGradient = std::function<void(size_t)>;

class ParameterHooks : NoCopy {
 public:
  ParameterHooks() = default;
  ~ParameterHooks() { remove(); }

  // Replaces the present hooks.
  void hang(const Tensors& parameters, const OnGradient& on_gradient);
  void remove();

 private:
  Tensors parameters_;
};

}  // namespace muster
