// The step of each class goes through the kernels that kernels.h names, or is torch::optim's own.
// The host counts steps before it knows whether the device has taken them.
#include <ATen/Functions.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/optim/each_once.h"
#include "muster/optim/graph_numbers.h"
#include "muster/optim/kernels.h"
#include "muster/optim/lots.h"
#include "muster/optim/optim.h"

namespace muster::optim {

namespace {

// The host knows within so many steps what the device has left out.
constexpr size_t kRecentSteps = 64;

std::vector<void*> parameters_with_gradients(Optimizer& optimizer) {
  std::vector<void*> found;
  for (const auto& group : optimizer.param_groups())
    append_mapped(found, with_gradients(group), &Tensor::unsafeGetTensorImpl);
  return found;
}

// Whether the kernels take the gradients, and the state that there is.
template <class Torch>
bool kernels_take(Torch& optimizer) {
  const auto fits = [&](const Tensor& parameter) {
    const auto state = state_of(optimizer, parameter.unsafeGetTensorImpl());
    return is_for_kernels(parameter) && (state.empty() || is_like(state[0], parameter));
  };
  return hold_for_all(optimizer.param_groups(), fits);
}

Tensor number_on(const Device& device) {
  return at::zeros({}, at::TensorOptions(kFloat).device(device));
}

// The steps that the device has left out, in memory that stays.
Tensor& counted_on(LeftOut& left_out, const Device& device) {
  if (!left_out.steps.defined())
    left_out.steps = number_on(device);
  return left_out.steps;
}

}  // namespace

// The group is compared with the others before it is one of them.
template <class Torch>
void Fused<Torch>::add_param_group(const OptimizerParamGroup& group) {
  auto groups = this->param_groups();
  groups.push_back(group);
  keep_each_once("optimizer", groups);
  Torch::add_param_group(groups.back());
}

// The closure makes the gradients that decide which step there is.
template <class Torch>
Tensor Fused<Torch>::step(Optimizer::LossClosure closure) {
  Tensor loss;
  if (closure) {
    const at::AutoGradMode enabled(true);
    loss = closure();
  }
  if (kernels_take<Torch>(*this))
    take_step(*this, {.left_out = left_out_.steps, .rounds_rates = rounds_rates_});
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
void Fused<Torch>::step_unless(const Tensor& found) {
  take_step(*this, {.left_out = left_out_.steps, .found = found, .rounds_rates = rounds_rates_});
  counted_on(left_out_, found.device()).add_(found);
  note_step(parameters_with_gradients(*this));
}

template <class Torch>
void Fused<Torch>::note_step(std::vector<void*> parameters) {
  left_out_.recent.push_back(std::move(parameters));
  if (left_out_.recent.size() > kRecentSteps)
    left_out_.recent.pop_front();
}

template <class Torch>
void Fused<Torch>::take_back(int64_t steps) {
  left_out_.steps.sub_(steps);
  for (int64_t step = 0; step < steps && !left_out_.recent.empty(); ++step) {
    for (void* const parameter : left_out_.recent.back())
      count_steps(*this, parameter, -1);
    left_out_.recent.pop_back();
  }
}

// One scalar for all parameters that have taken as many steps: they go on together.
template <class Torch>
std::shared_ptr<GraphNumbers> Fused<Torch>::numbers_for_graph() {
  auto numbers = std::make_shared<GraphNumbers>();
  for (const auto& group : this->param_groups()) {
    if (group.params().empty()) {
      numbers->rates.emplace_back();
      continue;
    }
    const Device device = group.params()[0].device();
    counted_on(left_out_, device);
    numbers->rates.push_back(number_on(device));
    for (const Tensor& parameter : group.params()) {
      void* const key = parameter.unsafeGetTensorImpl();
      const auto count = count_of(*this, key);
      if (count && !numbers->counts.contains(*count))
        numbers->counts[*count].steps = number_on(device);
    }
  }
  return numbers;
}

template <class Torch>
void Fused<Torch>::capture(GraphNumbers& numbers, const std::optional<Tensor>& found) {
  take_step(*this, {.left_out = left_out_.steps, .found = found, .graph = &numbers});
  if (found)
    left_out_.steps.add_(*found);
  numbers.parameters = parameters_with_gradients(*this);
  for (void* const parameter : numbers.parameters) {
    if (const auto count = count_of(*this, parameter))
      numbers.counts.at(*count).parameter = parameter;
  }
}

// A kernel has the number as its argument: no memory of the host is read later.
template <class Torch>
void Fused<Torch>::before_replay(GraphNumbers& numbers) {
  for (void* const parameter : numbers.parameters)
    count_steps(*this, parameter, 1);
  note_step(numbers.parameters);
  for (auto& [at_capture, count] : numbers.counts) {
    if (count.parameter != nullptr)
      count.steps.fill_(count_of(*this, count.parameter).value_or(0));
  }
  size_t index = 0;
  for (const auto& group : this->param_groups()) {
    const Tensor& rate = numbers.rates.at(index++);
    if (rate.defined())
      rate.fill_(group.options().get_lr());
  }
}

template <class Torch>
void Fused<Torch>::describe(std::vector<uint64_t>& into) {
  for (const auto& group : this->param_groups()) {
    for (const double option : options_of(*this, group))
      into.push_back(std::bit_cast<uint64_t>(option));
    for (const Tensor& parameter : group.params()) {
      into.push_back(address_of(parameter));
      for (const Tensor& state : state_of(*this, parameter.unsafeGetTensorImpl()))
        into.push_back(address_of(state));
    }
  }
}

template <class Torch>
Tensors Fused<Torch>::state_tensors() {
  Tensors found;
  for (const auto& group : this->param_groups()) {
    for (const Tensor& parameter : group.params())
      append_all(found, state_of(*this, parameter.unsafeGetTensorImpl()));
  }
  return found;
}

template class Fused<torch::optim::AdamW>;
template class Fused<torch::optim::Adam>;
template class Fused<torch::optim::SGD>;

}  // namespace muster::optim
