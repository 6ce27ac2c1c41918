// SGD's state is the momentum, which begins as the first gradient.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "muster/optim/lots.h"
#include "muster/optim/optim.h"

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

void take_sgd_step(torch::optim::SGD& optimizer, const std::optional<at::Tensor>& found) {
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

bool momenta_are_for_kernels(torch::optim::SGD& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : with_gradients(group)) {
      auto* const state = momentum_of(optimizer, parameter);
      if (state != nullptr && !is_like(state->momentum_buffer(), parameter))
        return false;
    }
  }
  return true;
}

}  // namespace

// The closure makes the gradients that decide which step there is.
at::Tensor SGD::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  if (are_for_kernels(param_groups()) && momenta_are_for_kernels(*this))
    take_sgd_step(*this, std::nullopt);
  else
    torch::optim::SGD::step();
  return loss;
}

// A first step with dampening that is left out would leave zeros for the second.
bool SGD::can_leave_out() {
  const auto has_dampening = [](const torch::optim::OptimizerParamGroup& group) {
    return static_cast<const Options&>(group.options()).dampening() != 0;
  };
  return std::ranges::none_of(param_groups(), has_dampening) && are_for_kernels(param_groups()) &&
         are_on_one_gpu(param_groups()) && momenta_are_for_kernels(*this);
}

void SGD::step_unless(const at::Tensor& found) {
  take_sgd_step(*this, found);
}

// It counts no steps.
void SGD::take_back(int64_t /*steps*/) {}

}  // namespace muster::optim
