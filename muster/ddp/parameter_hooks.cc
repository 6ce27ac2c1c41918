// The hook hangs on the parameter itself, where it stays when the accumulator changes.
#include "muster/ddp/parameter_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>
#include <vector>

#include "muster/base/functions.h"
#include "muster/base/indices_of.h"

namespace muster {

namespace {

// LibTorch has one place for such a hook in a parameter. All who listen share it, and the hook that
// was there before is called after them.
class SharedHook : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit SharedHook(std::unique_ptr<PostAccumulateGradHook> earlier)
      : earlier_(std::move(earlier)) {}

  void operator()(const Tensor& parameter) override {
    for (const Listener& listener : listeners_)
      listener.body();
    if (earlier_)
      (*earlier_)(parameter);
  }

  void add(const void* owner, Callback body) { listeners_.push_back({owner, std::move(body)}); }
  void remove(const void* owner) {
    std::erase_if(listeners_, [&](const Listener& listener) { return listener.owner == owner; });
  }
  bool empty() const { return listeners_.empty(); }
  std::unique_ptr<PostAccumulateGradHook> take_earlier() { return std::move(earlier_); }

 private:
  struct Listener {
    const void* owner;
    Callback body;
  };
  std::vector<Listener> listeners_;
  std::unique_ptr<PostAccumulateGradHook> earlier_;
};

// nullptr where the parameter has no hook, or one that is not ours.
SharedHook* shared_hook_of(const Tensor& parameter) {
  return dynamic_cast<SharedHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

}  // namespace

void ParameterHooks::hang(const Tensors& parameters, const OnGradient& on_gradient) {
  remove();
  parameters_ = parameters;
  for (const size_t i : indices_of(parameters_)) {
    if (shared_hook_of(parameters_[i]) == nullptr) {
      auto& place = torch::autograd::impl::post_acc_grad_hooks(parameters_[i]);
      place = std::make_unique<SharedHook>(std::move(place));
    }
    shared_hook_of(parameters_[i])->add(this, [on_gradient, i] { on_gradient(i); });
  }
}

// The last who listens puts the earlier hook back.
void ParameterHooks::remove() {
  for (const Tensor& parameter : parameters_) {
    SharedHook* const hook = shared_hook_of(parameter);
    if (hook == nullptr)
      continue;
    hook->remove(this);
    if (!hook->empty())
      continue;
    auto earlier = hook->take_earlier();
    torch::autograd::impl::post_acc_grad_hooks(parameter) = std::move(earlier);
  }
  parameters_.clear();
}

}  // namespace muster
