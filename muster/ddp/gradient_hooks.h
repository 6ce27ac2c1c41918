// Calls a function whenever autograd has accumulated a gradient of some parameters, by the
// accumulators that they have now; and another one, where asked, by whatever accumulator
// (parameter_hooks.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/torch_compat.h"
#include "muster/ddp/parameter_hooks.h"

namespace muster {

class GradientHooks : NoCopy {
 public:
  GradientHooks() = default;
  ~GradientHooks() { remove(); }

  // Replaces the present hooks. `on_any_gradient` also comes for gradients of which `on_gradient`
  // does not hear.
  void hang(const Tensors& parameters,
            const OnGradient& on_gradient,
            const OnGradient& on_any_gradient = nullptr);
  void remove();
  // In autograd's threads: whether the gradient that is accumulated now is this parameter's, by the
  // accumulator on which the hook hangs.
  bool hear(size_t index) const;

 private:
  std::vector<AutogradNodePtr> accumulators_;  // kept alive: a hook on a dead one never fires
  std::vector<uintptr_t> hooks_;
  ParameterHooks any_;
};

}  // namespace muster
