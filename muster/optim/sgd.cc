// SGD's state is the momentum, which begins as the first gradient.
#include <ATen/Functions.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/optim/kernels.h"
#include "muster/optim/lots.h"

namespace muster::optim {

namespace {

using Options = torch::optim::SGDOptions;
using State = torch::optim::SGDParamState;

const Options& sgd_options(const OptimizerParamGroup& group) {
  return static_cast<const Options&>(group.options());
}

State* momentum_of(torch::optim::SGD& optimizer, void* parameter) {
  const auto* const found = value_at(optimizer.state(), parameter);
  return found == nullptr ? nullptr : static_cast<State*>(found->get());
}

// Without dampening, a momentum of zeros becomes the first gradient, bit for bit. With it, the
// kernel has to know that the step is the first.
void add_momentum(Lots& lots,
                  torch::optim::SGD& optimizer,
                  const Tensor& parameter,
                  double dampening,
                  const StepKind& kind) {
  State* state = momentum_of(optimizer, parameter.unsafeGetTensorImpl());
  const bool is_first = state == nullptr;
  if (is_first) {
    expect_state_before(kind);
    auto made = std::make_unique<State>();
    state = made.get();
    made->momentum_buffer(at::zeros_like(parameter));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  state->momentum_buffer(laid_out_as(parameter, state->momentum_buffer()));
  Lot& lot = lots.add(parameter, is_first && dampening != 0);
  lot.state.resize(1);
  lot.state[0].push_back(state->momentum_buffer());
}

void sgd_on_lot(
    const Lot& lot, const Options& options, const StepKind& kind, size_t group, bool is_first) {
  with_rate(kind, group, options.lr(), [&](const auto& rate) {
    at::_fused_sgd_(lot.parameters,
                    lot.gradients,
                    lot.state[0],
                    options.weight_decay(),
                    options.momentum(),
                    rate,
                    options.dampening(),
                    options.nesterov(),
                    /*maximize=*/false,
                    /*is_first_step=*/is_first,
                    /*grad_scale=*/std::nullopt,
                    kind.found);
  });
}

}  // namespace

void take_step(torch::optim::SGD& optimizer, const StepKind& kind) {
  const NoGradGuard no_grad;
  size_t index = 0;
  for (auto& group : optimizer.param_groups()) {
    const Options& options = sgd_options(group);
    Lots lots;
    for (const Tensor& parameter : with_gradients(group)) {
      if (options.momentum() == 0)
        lots.add(parameter).state.resize(1);
      else
        add_momentum(lots, optimizer, parameter, options.dampening(), kind);
    }
    for (const auto& [what, lot] : lots)
      sgd_on_lot(lot, options, kind, index, /*is_first=*/std::get<2>(what));
    ++index;
  }
}

Tensors state_of(torch::optim::SGD& optimizer, void* parameter) {
  const State* const state = momentum_of(optimizer, parameter);
  if (state == nullptr)
    return {};
  return {state->momentum_buffer()};
}

// SGD counts no steps.
std::optional<int64_t> count_of(torch::optim::SGD& /*optimizer*/, void* /*parameter*/) {
  return std::nullopt;
}
void count_steps(torch::optim::SGD& /*optimizer*/, void* /*parameter*/, int64_t /*steps*/) {}

Doubles options_of(const torch::optim::SGD& /*optimizer*/, const OptimizerParamGroup& group) {
  const Options& options = sgd_options(group);
  return {options.momentum(),
          options.dampening(),
          options.weight_decay(),
          options.nesterov() ? 1.0 : 0.0};
}

// With dampening the first momentum is the whole gradient. If that step were left out, the second
// would find zeros.
bool needs_its_first_step(torch::optim::SGD& optimizer) {
  return any_of(optimizer.param_groups(),
                [](const auto& group) { return sgd_options(group).dampening() != 0; });
}

}  // namespace muster::optim
