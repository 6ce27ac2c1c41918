// A Hook holds a CommunicationHook or nothing. A hook that remembers something belongs to one
// model: the model that gets it takes it, and gives it back when it goes.
#include "muster/ddp/hooks.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

namespace {

// A user's function, which remembers nothing that muster knows of.
class FunctionHook : public CommunicationHook {
 public:
  explicit FunctionHook(std::function<Reduction(GradientBucket)> function)
      : function_(std::move(function)) {}
  std::string name() const override { return "a function"; }
  Reduction reduce(GradientBucket bucket) override { return function_(std::move(bucket)); }

 private:
  std::function<Reduction(GradientBucket)> function_;
};

}  // namespace

Reduction::Reduction(FuturePtr future)
    : finish_([future = std::move(future)] {
        future->wait();
        return c10d::detail::parseCppCommHookResult(future->value());
      }) {}

std::shared_ptr<CommunicationHook> Hook::of_function(
    std::function<Reduction(GradientBucket)> function) {
  return std::make_shared<FunctionHook>(std::move(function));
}

void Hook::load_state(const HookState& state) const {
  if (hook_)
    return hook_->load_state(state);
  if (state.tensors.empty() && state.own.empty() && state.numbers.empty())
    return;
  throw invalid_argument(
      "hook: expected no state for no hook, got one; give the hook that saved it");
}

// A hook without state may serve several models.
void Hook::take() const {
  if (!hook_ || !hook_->remembers())
    return;
  if (hook_->taken_) {
    throw failed_precondition(
        "DistributedDataParallel: expected a hook that no other model has, got ",
        hook_->name(),
        ", which another model has and which keeps what it has not sent; make one for "
        "each model");
  }
  hook_->taken_ = true;
}

void Hook::release() const {
  if (hook_)
    hook_->taken_ = false;
}

}  // namespace muster
