// Adam and AdamW differ in what their kernels make of weight decay. The state counts steps on the
// host. The device subtracts those that it has left out, until the host knows of them.
#include <ATen/Functions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "muster/optim/lots.h"
#include "muster/optim/optim.h"

namespace muster::optim {

namespace {

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
                           at::Tensor& left_out,
                           const at::Tensor& found) {
  take_adam_step<Kind>(optimizer, left_out, found);
  left_out = left_out.defined() ? left_out + found : found.clone();
}

// Parameters that have no gradient now had none then, for all that is known here.
template <class Kind>
void take_adam_steps_back(typename Kind::Base& optimizer, at::Tensor& left_out, int64_t steps) {
  left_out.sub_(steps);
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : with_gradients(group)) {
      if (auto* const state = state_of<Kind>(optimizer, parameter))
        state->step(state->step() - steps);
    }
  }
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure)
    return {};
  const at::AutoGradMode enabled(true);
  return closure();
}

}  // namespace

at::Tensor AdamW::step(LossClosure closure) {
  if (!are_for_kernels(param_groups()))
    return torch::optim::AdamW::step(std::move(closure));
  at::Tensor loss = loss_of(closure);
  take_adam_step<OfAdamW>(*this, left_out_, std::nullopt);
  return loss;
}

bool AdamW::can_leave_out() const {
  return are_for_kernels(param_groups()) && are_on_one_gpu(param_groups());
}

void AdamW::step_unless(const at::Tensor& found) {
  take_adam_step_unless<OfAdamW>(*this, left_out_, found);
}

void AdamW::take_back(int64_t steps) {
  take_adam_steps_back<OfAdamW>(*this, left_out_, steps);
}

at::Tensor Adam::step(LossClosure closure) {
  if (!are_for_kernels(param_groups()))
    return torch::optim::Adam::step(std::move(closure));
  at::Tensor loss = loss_of(closure);
  take_adam_step<OfAdam>(*this, left_out_, std::nullopt);
  return loss;
}

bool Adam::can_leave_out() const {
  return are_for_kernels(param_groups()) && are_on_one_gpu(param_groups());
}

void Adam::step_unless(const at::Tensor& found) {
  take_adam_step_unless<OfAdam>(*this, left_out_, found);
}

void Adam::take_back(int64_t steps) {
  take_adam_steps_back<OfAdam>(*this, left_out_, steps);
}

}  // namespace muster::optim
