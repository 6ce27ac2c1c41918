// The step of each class goes through the kernels that kernels.h names, or is torch::optim's own.
// The host counts steps before it knows whether the device has taken them.
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "muster/optim/kernels.h"
#include "muster/optim/lots.h"
#include "muster/optim/optim.h"

namespace muster::optim {

namespace {

// The host knows within so many steps what the device has left out.
constexpr size_t kRecentSteps = 64;

std::vector<void*> parameters_with_gradients(torch::optim::Optimizer& optimizer) {
  std::vector<void*> found;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : with_gradients(group))
      found.push_back(parameter.unsafeGetTensorImpl());
  }
  return found;
}

// Whether the kernels take the gradients, and the state that there is.
template <class Torch>
bool kernels_take(Torch& optimizer) {
  const auto fits = [&](const at::Tensor& parameter) {
    return is_for_kernels(parameter) && is_like(state_of(optimizer, parameter), parameter);
  };
  return hold_for_all(optimizer.param_groups(), fits);
}

}  // namespace

// The closure makes the gradients that decide which step there is.
template <class Torch>
at::Tensor Fused<Torch>::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  if (kernels_take<Torch>(*this))
    take_step(*this, left_out_.steps, std::nullopt);
  else
    Torch::step();
  return loss;
}

template <class Torch>
bool Fused<Torch>::can_leave_out() {
  return are_on_one_gpu(this->param_groups()) && !needs_its_first_step(*this) &&
         kernels_take<Torch>(*this);
}

template <class Torch>
void Fused<Torch>::step_unless(const at::Tensor& found) {
  take_step(*this, left_out_.steps, found);
  left_out_.steps = left_out_.steps.defined() ? left_out_.steps + found : found.clone();
  left_out_.recent.push_back(parameters_with_gradients(*this));
  if (left_out_.recent.size() > kRecentSteps)
    left_out_.recent.pop_front();
}

template <class Torch>
void Fused<Torch>::take_back(int64_t steps) {
  left_out_.steps.sub_(steps);
  for (int64_t step = 0; step < steps && !left_out_.recent.empty(); ++step) {
    for (void* const parameter : left_out_.recent.back())
      count_back(*this, parameter);
    left_out_.recent.pop_back();
  }
}

template class Fused<torch::optim::AdamW>;
template class Fused<torch::optim::Adam>;
template class Fused<torch::optim::SGD>;

}  // namespace muster::optim
