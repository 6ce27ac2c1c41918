// Adam and AdamW differ in what their kernels make of weight decay. The state counts steps on the
// host. The device subtracts those that it has left out, until the host knows of them.
#include <ATen/Functions.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "muster/optim/kernels.h"
#include "muster/optim/lots.h"

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
typename Kind::State* adam_state(typename Kind::Base& optimizer, void* parameter) {
  const auto found = optimizer.state().find(parameter);
  if (found == optimizer.state().end())
    return nullptr;
  return static_cast<typename Kind::State*>(found->second.get());
}

// The state as torch::optim makes it at a parameter's first step.
template <class Kind>
typename Kind::State& first_state(typename Kind::Base& optimizer, const at::Tensor& parameter) {
  auto made = std::make_unique<typename Kind::State>();
  made->step(0);
  made->exp_avg(at::zeros_like(parameter));
  made->exp_avg_sq(at::zeros_like(parameter));
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
  auto* const known = adam_state<Kind>(optimizer, parameter.unsafeGetTensorImpl());
  auto& state = known != nullptr ? *known : first_state<Kind>(optimizer, parameter);
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
    if (!state.max_exp_avg_sq().defined())  // the option was set later
      state.max_exp_avg_sq(at::zeros_like(parameter));
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
at::Tensor first_moment(typename Kind::Base& optimizer, const at::Tensor& parameter) {
  const auto* const state = adam_state<Kind>(optimizer, parameter.unsafeGetTensorImpl());
  return state != nullptr ? state->exp_avg() : at::Tensor();
}

template <class Kind>
void count_adam_back(typename Kind::Base& optimizer, void* parameter) {
  if (auto* const state = adam_state<Kind>(optimizer, parameter))
    state->step(state->step() - 1);
}

}  // namespace

void take_step(torch::optim::Adam& optimizer,
               const at::Tensor& left_out,
               const std::optional<at::Tensor>& found) {
  take_adam_step<OfAdam>(optimizer, left_out, found);
}
void take_step(torch::optim::AdamW& optimizer,
               const at::Tensor& left_out,
               const std::optional<at::Tensor>& found) {
  take_adam_step<OfAdamW>(optimizer, left_out, found);
}

at::Tensor state_of(torch::optim::Adam& optimizer, const at::Tensor& parameter) {
  return first_moment<OfAdam>(optimizer, parameter);
}
at::Tensor state_of(torch::optim::AdamW& optimizer, const at::Tensor& parameter) {
  return first_moment<OfAdamW>(optimizer, parameter);
}

void count_back(torch::optim::Adam& optimizer, void* parameter) {
  count_adam_back<OfAdam>(optimizer, parameter);
}
void count_back(torch::optim::AdamW& optimizer, void* parameter) {
  count_adam_back<OfAdamW>(optimizer, parameter);
}

}  // namespace muster::optim
