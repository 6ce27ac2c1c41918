// Adam and AdamW differ in what their kernels make of weight decay. The state counts steps on the
// host. The device subtracts those that it has left out, until the host knows of them.
#include <ATen/Functions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
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
  const auto* const found = value_at(optimizer.state(), parameter);
  return found == nullptr ? nullptr : static_cast<typename Kind::State*>(found->get());
}

// The state as torch::optim makes it at a parameter's first step.
template <class Kind>
typename Kind::State& first_state(typename Kind::Base& optimizer, const Tensor& parameter) {
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
         const Tensor& parameter,
         bool amsgrad,
         const StepKind& kind) {
  auto* const known = adam_state<Kind>(optimizer, parameter.unsafeGetTensorImpl());
  if (known == nullptr || (amsgrad && !known->max_exp_avg_sq().defined()))
    expect_state_before(kind);
  auto& state = known != nullptr ? *known : first_state<Kind>(optimizer, parameter);
  if (kind.graph == nullptr)
    state.step(state.step() + 1);
  state.exp_avg(laid_out_as(parameter, state.exp_avg()));
  state.exp_avg_sq(laid_out_as(parameter, state.exp_avg_sq()));
  Lot& lot = lots.add(parameter);
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
void adam_on_lot(const Lot& lot,
                 const typename Kind::Options& options,
                 const StepKind& kind,
                 size_t group) {
  with_rate(kind, group, options.lr(), [&](const auto& rate) {
    Kind::kernel(lot.parameters,
                 lot.gradients,
                 lot.state[0],
                 lot.state[1],
                 lot.state[2],
                 lot.steps,
                 rate,
                 std::get<0>(options.betas()),
                 std::get<1>(options.betas()),
                 options.weight_decay(),
                 options.eps(),
                 options.amsgrad(),
                 /*maximize=*/false,
                 /*grad_scale=*/std::nullopt,
                 kind.found);
  });
}

template <class Kind>
void take_adam_step(typename Kind::Base& optimizer, const StepKind& kind) {
  const NoGradGuard no_grad;
  StepCounts counts(kind);
  size_t index = 0;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Kind::Options&>(group.options());
    Lots lots;
    for (const Tensor& parameter : with_gradients(group))
      add<Kind>(lots, counts, optimizer, parameter, options.amsgrad(), kind);
    for (const auto& [what, lot] : lots)
      adam_on_lot<Kind>(lot, options, kind, index);
    ++index;
  }
}

template <class Kind>
Tensors adam_tensors(typename Kind::Base& optimizer, void* parameter) {
  const auto* const state = adam_state<Kind>(optimizer, parameter);
  if (state == nullptr)
    return {};
  return {state->exp_avg(), state->exp_avg_sq(), state->max_exp_avg_sq()};
}

template <class Kind>
std::optional<int64_t> adam_count(typename Kind::Base& optimizer, void* parameter) {
  const auto* const state = adam_state<Kind>(optimizer, parameter);
  return state != nullptr ? std::optional(state->step()) : std::nullopt;
}

template <class Kind>
void count_adam_steps(typename Kind::Base& optimizer, void* parameter, int64_t steps) {
  if (auto* const state = adam_state<Kind>(optimizer, parameter))
    state->step(state->step() + steps);
}

template <class Options>
Doubles adam_options(const OptimizerParamGroup& group) {
  const auto& options = static_cast<const Options&>(group.options());
  return {std::get<0>(options.betas()),
          std::get<1>(options.betas()),
          options.eps(),
          options.weight_decay(),
          options.amsgrad() ? 1.0 : 0.0};
}

}  // namespace

void take_step(torch::optim::Adam& optimizer, const StepKind& kind) {
  take_adam_step<OfAdam>(optimizer, kind);
}
void take_step(torch::optim::AdamW& optimizer, const StepKind& kind) {
  take_adam_step<OfAdamW>(optimizer, kind);
}

Tensors state_of(torch::optim::Adam& optimizer, void* parameter) {
  return adam_tensors<OfAdam>(optimizer, parameter);
}
Tensors state_of(torch::optim::AdamW& optimizer, void* parameter) {
  return adam_tensors<OfAdamW>(optimizer, parameter);
}

std::optional<int64_t> count_of(torch::optim::Adam& optimizer, void* parameter) {
  return adam_count<OfAdam>(optimizer, parameter);
}
std::optional<int64_t> count_of(torch::optim::AdamW& optimizer, void* parameter) {
  return adam_count<OfAdamW>(optimizer, parameter);
}

void count_steps(torch::optim::Adam& optimizer, void* parameter, int64_t steps) {
  count_adam_steps<OfAdam>(optimizer, parameter, steps);
}
void count_steps(torch::optim::AdamW& optimizer, void* parameter, int64_t steps) {
  count_adam_steps<OfAdamW>(optimizer, parameter, steps);
}

Doubles options_of(const torch::optim::Adam& /*optimizer*/, const OptimizerParamGroup& group) {
  return adam_options<torch::optim::AdamOptions>(group);
}
Doubles options_of(const torch::optim::AdamW& /*optimizer*/, const OptimizerParamGroup& group) {
  return adam_options<torch::optim::AdamWOptions>(group);
}

}  // namespace muster::optim
