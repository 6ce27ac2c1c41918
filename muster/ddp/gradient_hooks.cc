// A parameter's accumulator is the node of the graph that adds to its gradient. A hook on it also
// hears of an undefined gradient, and hears nothing when the parameter gets another accumulator.
#include "muster/ddp/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

#include "muster/base/indices_of.h"
#include "muster/ddp/post_hook.h"

namespace muster {

void GradientHooks::hang(const Tensors& parameters,
                         const OnGradient& on_gradient,
                         const OnGradient& on_any_gradient) {
  remove();
  for (const size_t i : indices_of(parameters)) {
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters[i]));
    auto hook = std::make_unique<PostHook>([on_gradient, i] { on_gradient(i); });
    hooks_.push_back(accumulators_.back()->add_post_hook(std::move(hook)));
  }
  if (on_any_gradient)
    any_.hang(parameters, on_any_gradient);
}

bool GradientHooks::hear(size_t index) const {
  return torch::autograd::get_current_node().get() == accumulators_[index].get();
}

void GradientHooks::remove() {
  for (const size_t i : indices_of(hooks_))
    accumulators_[i]->del_post_hook(hooks_[i]);
  hooks_.clear();
  accumulators_.clear();
  any_.remove();
}

}  // namespace muster
