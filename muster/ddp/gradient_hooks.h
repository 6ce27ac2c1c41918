// Calls a function whenever autograd has accumulated a gradient of some parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "muster/comm/torch_compat.h"

namespace muster {

class GradientHooks {
 public:
  GradientHooks() = default;
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;
  ~GradientHooks() { remove(); }

  // Replaces the present hooks. `on_gradient` gets the parameter's index, in one of autograd's
  // threads.
  void hang(const std::vector<at::Tensor>& parameters,
            const std::function<void(size_t)>& on_gradient);
  void remove();
  // Inside autograd's threads: whether the gradient that is being accumulated now is that of this
  // parameter, by the accumulator on which the hook hangs.
  bool hear(size_t index) const;

 private:
  std::vector<AutogradNodePtr> accumulators_;  // kept alive: a hook on a dead one never fires
  std::vector<uintptr_t> hooks_;
};

}  // namespace muster
