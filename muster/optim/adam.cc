// Adam and AdamW differ in what their kernels make of weight decay. The state counts steps on the
// host. The device subtracts those that it has left out, until the host knows of them.
#include <ATen/Functions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/optim/lots.h"
#include "muster/optim/optim.h"

namespace muster::optim {

namespace {

// The host knows within so many steps what the device has left out.
constexpr size_t kRecentSteps = 64;

// The classes of one optimizer, and its kernel.
struct OfAdam {
  using Base = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  template <class... Arguments>
  static void kernel(Arguments&&... arguments) {
    at::_fused_adam_(std::forward<Arguments>(arguments)...);
  }
};

struct OfAdamW {
  using Base = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  template <class... Arguments>
  static void kernel(Arguments&&... arguments) {
    at::_fused_adamw_(std::forward<Arguments>(arguments)...);
  }
};

template <class Kind>
typename Kind::State* state_of(typename Kind::Base& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end())
    return nullptr;
  return static_cast<typename Kind::State*>(found->second.get());
}

// The state as torch::optim makes it at a parameter's first step.
template <class Kind>
typename Kind::State& first_state(typename Kind::Base& optimizer,
                                  const at::Tensor& parameter,
                                  bool amsgrad) {
  auto made = std::make_unique<typename Kind::State>();
  made->step(0);
  made->exp_avg(at::zeros_like(parameter));
  made->exp_avg_sq(at::zeros_like(parameter));
  if (amsgrad)
    made->max_exp_avg_sq(at::zeros_like(parameter));
  auto& state = *made;
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  return state;
}

// Puts a parameter into its lot. Its state counts the step.
template <class Kind>
void add(Lots& lots,
         StepCounts& counts,
         typename Kind::Base& optimizer,
         const at::Tensor& parameter,
         bool amsgrad) {
  auto* known = state_of<Kind>(optimizer, parameter);
  auto& state = known != nullptr ? *known : first_state<Kind>(optimizer, parameter, amsgrad);
  state.step(state.step() + 1);
  state.exp_avg(laid_out_as(parameter, state.exp_avg()));
  state.exp_avg_sq(laid_out_as(parameter, state.exp_avg_sq()));
  Lot& lot = lots.of(parameter);
  lot.parameters.push_back(parameter);
  lot.gradients.push_back(laid_out_as(parameter, parameter.grad()));
  lot.state.resize(3);
  lot.state[0].push_back(state.exp_avg());
  lot.state[1].push_back(state.exp_avg_sq());
  if (amsgrad) {
    state.max_exp_avg_sq(laid_out_as(parameter, state.max_exp_avg_sq()));
    lot.state[2].push_back(state.max_exp_avg_sq());
  }
  lot.steps.push_back(counts.of(parameter, state.step()));
}

template <class Kind>
void take_adam_step(typename Kind::Base& optimizer,
                    const at::Tensor& left_out,
                    const std::optional<at::Tensor>& found) {
  const at::NoGradGuard no_grad;
  StepCounts counts(left_out);
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Kind::Options&>(group.options());
    Lots lots;
    for (const at::Tensor& parameter : with_gradients(group))
      add<Kind>(lots, counts, optimizer, parameter, options.amsgrad());
    for (const auto& [kind, lot] : lots) {
      Kind::kernel(lot.parameters,
                   lot.gradients,
                   lot.state[0],
                   lot.state[1],
                   lot.state[2],
                   lot.steps,
                   options.lr(),
                   std::get<0>(options.betas()),
                   std::get<1>(options.betas()),
                   options.weight_decay(),
                   options.eps(),
                   options.amsgrad(),
                   /*maximize=*/false,
                   /*grad_scale=*/std::nullopt,
                   found);
    }
  }
}

template <class Kind>
void take_adam_step_unless(typename Kind::Base& optimizer,
                           LeftOut& left_out,
                           const at::Tensor& found) {
  take_adam_step<Kind>(optimizer, left_out.steps, found);
  left_out.steps = left_out.steps.defined() ? left_out.steps + found : found.clone();
  std::vector<void*> stepped;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : with_gradients(group))
      stepped.push_back(parameter.unsafeGetTensorImpl());
  }
  left_out.recent.push_back(std::move(stepped));
  if (left_out.recent.size() > kRecentSteps)
    left_out.recent.pop_front();
}

template <class Kind>
void take_adam_steps_back(typename Kind::Base& optimizer, LeftOut& left_out, int64_t steps) {
  left_out.steps.sub_(steps);
  for (int64_t step = 0; step < steps && !left_out.recent.empty(); ++step) {
    for (void* const parameter : left_out.recent.back()) {
      const auto found = optimizer.state().find(parameter);
      if (found == optimizer.state().end())
        continue;
      auto& state = static_cast<typename Kind::State&>(*found->second);
      state.step(state.step() - 1);
    }
    left_out.recent.pop_back();
  }
}

// Whether kernels take the state that there is: of the parameters' types and devices.
template <class Kind>
bool states_are_for_kernels(typename Kind::Base& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : with_gradients(group)) {
      const auto* const state = state_of<Kind>(optimizer, parameter);
      if (state != nullptr && !is_like(state->exp_avg(), parameter))
        return false;
    }
  }
  return true;
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure)
    return {};
  const at::AutoGradMode enabled(true);
  return closure();
}

}  // namespace

// The closure makes the gradients that decide which step there is.
at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  if (are_for_kernels(param_groups()) && states_are_for_kernels<OfAdamW>(*this))
    take_adam_step<OfAdamW>(*this, left_out_.steps, std::nullopt);
  else
    torch::optim::AdamW::step();
  return loss;
}

bool AdamW::can_leave_out() {
  return are_for_kernels(param_groups()) && are_on_one_gpu(param_groups()) &&
         states_are_for_kernels<OfAdamW>(*this);
}

void AdamW::step_unless(const at::Tensor& found) {
  take_adam_step_unless<OfAdamW>(*this, left_out_, found);
}

void AdamW::take_back(int64_t steps) {
  take_adam_steps_back<OfAdamW>(*this, left_out_, steps);
}

at::Tensor Adam::step(LossClosure closure) {
  at::Tensor loss = loss_of(closure);
  if (are_for_kernels(param_groups()) && states_are_for_kernels<OfAdam>(*this))
    take_adam_step<OfAdam>(*this, left_out_.steps, std::nullopt);
  else
    torch::optim::Adam::step();
  return loss;
}

bool Adam::can_leave_out() {
  return are_for_kernels(param_groups()) && are_on_one_gpu(param_groups()) &&
         states_are_for_kernels<OfAdam>(*this);
}

void Adam::step_unless(const at::Tensor& found) {
  take_adam_step_unless<OfAdam>(*this, left_out_, found);
}

void Adam::take_back(int64_t steps) {
  take_adam_steps_back<OfAdam>(*this, left_out_, steps);
}

}  // namespace muster::optim
