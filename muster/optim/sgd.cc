// SGD's state is the momentum, which begins as the first gradient.
#include <ATen/Functions.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "muster/optim/kernels.h"
#include "muster/optim/lots.h"

namespace muster::optim {

namespace {

using Options = torch::optim::SGDOptions;
using State = torch::optim::SGDParamState;

State* momentum_of(torch::optim::SGD& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

// Without dampening, a momentum of zeros becomes the first gradient, bit for bit. With it, the
// kernel has to know that the step is the first.
void add_momentum(Lots& lots,
                  torch::optim::SGD& optimizer,
                  const at::Tensor& parameter,
                  double dampening) {
  State* state = momentum_of(optimizer, parameter);
  const bool is_first = state == nullptr;
  if (is_first) {
    auto made = std::make_unique<State>();
    state = made.get();
    made->momentum_buffer(at::zeros_like(parameter));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  state->momentum_buffer(laid_out_as(parameter, state->momentum_buffer()));
  Lot& lot = lots.of(parameter, is_first && dampening != 0);
  lot.state.resize(1);
  lot.state[0].push_back(state->momentum_buffer());
  lot.parameters.push_back(parameter);
  lot.gradients.push_back(laid_out_as(parameter, parameter.grad()));
}

void add_plain(Lots& lots, const at::Tensor& parameter) {
  Lot& lot = lots.of(parameter);
  lot.state.resize(1);
  lot.parameters.push_back(parameter);
  lot.gradients.push_back(laid_out_as(parameter, parameter.grad()));
}

}  // namespace

void take_step(torch::optim::SGD& optimizer,
               const at::Tensor& /*left_out*/,
               const std::optional<at::Tensor>& found) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    Lots lots;
    for (const at::Tensor& parameter : with_gradients(group)) {
      if (options.momentum() == 0)
        add_plain(lots, parameter);
      else
        add_momentum(lots, optimizer, parameter, options.dampening());
    }
    for (const auto& [kind, lot] : lots) {
      at::_fused_sgd_(lot.parameters,
                      lot.gradients,
                      lot.state[0],
                      options.weight_decay(),
                      options.momentum(),
                      options.lr(),
                      options.dampening(),
                      options.nesterov(),
                      /*maximize=*/false,
                      /*is_first_step=*/std::get<2>(kind),
                      /*grad_scale=*/std::nullopt,
                      found);
    }
  }
}

at::Tensor state_of(torch::optim::SGD& optimizer, const at::Tensor& parameter) {
  const State* const state = momentum_of(optimizer, parameter);
  return state != nullptr ? state->momentum_buffer() : at::Tensor();
}

// SGD counts no steps.
void count_back(torch::optim::SGD& /*optimizer*/, void* /*parameter*/) {}

// With dampening the first momentum is the whole gradient. If that step were left out, the second
// would find zeros.
bool needs_its_first_step(torch::optim::SGD& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return static_cast<const Options&>(group.options()).dampening() != 0;
  });
}

}  // namespace muster::optim
