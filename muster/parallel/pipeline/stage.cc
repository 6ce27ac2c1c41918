// Runs the forwards and backwards of one stage. A micro-batch's graph is held from its forward to
// its backward. With recompute only the input and the states of the random generators are held, and
// the forward runs again before the backward, with the same draws.
#include "muster/parallel/pipeline/stage.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "muster/base/error.h"
#include "muster/base/lock.h"

namespace muster {

namespace {

// Generators are shared by all threads of the process, hence the lock.
Tensor state_of(Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const Lock lock(generator.mutex());
  return generator.get_state();
}

void set_state(Device device, const Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const Lock lock(generator.mutex());
  generator.set_state(state);
}

// The same memory as its input, of which autograd is no leaf: a layer may write into it, as into
// the output of the layer before it in one process.
struct Writable : torch::autograd::Function<Writable> {
  static Tensor forward(AutogradContext*, const Tensor& input) { return input.detach(); }
  static Tensors backward(AutogradContext*, Tensors gradients) { return gradients; }
};

// Any stage may begin with a layer that writes into its input. The first stage's is the caller's
// batch.
Tensor layer_input(const Tensor& input) {
  return input.requires_grad() ? Writable::apply(input) : input.clone();
}

// A frozen first stage has no graph, and no gradients to find.
bool has_backward(const Tensor& output, const Tensor& input) {
  if (output.requires_grad())
    return true;
  if (!input.requires_grad())
    return false;
  throw invalid_argument(
      "pipeline: expected a stage whose output depends on its input or a trained weight, "
      "got one that depends on neither; look for NoGradGuard and detach() in its forward");
}

// A stage that does not use its input gives it zeros.
Tensor gradient_of(const Tensor& input, const Tensor& found) {
  return input.requires_grad() && !found.defined() ? at::zeros_like(input) : found;
}

}  // namespace

// Both generators count: a stage on a GPU may still draw on the CPU.
RandomStates RandomStates::now(Device device) {
  return {.on_cpu = state_of(kCPU), .on_device = device.is_cpu() ? Tensor() : state_of(device)};
}

void RandomStates::restore(Device device) const {
  set_state(kCPU, on_cpu);
  if (!device.is_cpu())
    set_state(device, on_device);
}

// The output is detached, since its graph stays with the stage.
Tensor StageRunner::forward(int micro_batch,
                            const Tensor& input,
                            bool takes_gradient,
                            bool recompute) {
  Held held{.input = input.detach(), .output = {}, .recompute = recompute};
  held.input.set_requires_grad(takes_gradient);
  Tensor output;
  if (recompute) {
    held.random = RandomStates::now(device_);
    const NoGradGuard no_grad;
    output = compute_(held.input.clone(), micro_batch);  // it is computed from again
  } else {
    output = held.output = compute_(layer_input(held.input), micro_batch);
  }
  held_[micro_batch] = std::move(held);
  return output.detach();
}

// Puts the generators back afterwards, so that later draws are as without recompute.
void StageRunner::compute_again(Held& held, int micro_batch) {
  if (!held.recompute)
    return;
  const RandomStates after = RandomStates::now(device_);
  held.random.restore(device_);
  held.output = compute_(layer_input(held.input), micro_batch);
  after.restore(device_);
}

// Called where there is a backward.
void StageRunner::look_at(const Held& held) {
  if (leaves_ != nullptr && held.output.requires_grad())
    add_leaves(held.output, held.input, *leaves_);
}

// The micro-batch is no longer held afterwards, also when this throws.
Tensor StageRunner::backward(int micro_batch, const Tensor& gradient) {
  Held held = std::move(held_.extract(micro_batch).mapped());
  compute_again(held, micro_batch);
  if (!has_backward(held.output, held.input))
    return {};
  look_at(held);
  torch::autograd::backward({held.output}, {gradient});
  return gradient_of(held.input, held.input.grad());
}

// The micro-batch stays held until weight_backward() has run.
Tensor StageRunner::input_backward(int micro_batch, const Tensor& gradient) {
  Held& held = held_.at(micro_batch);
  compute_again(held, micro_batch);
  if (!has_backward(held.output, held.input))
    return {};
  look_at(held);
  InputBackward done = backward_of_input(held.output, gradient, held.input);
  held.left = std::move(done.left);
  return gradient_of(held.input, done.gradient);
}

// It must follow input_backward() of the same micro-batch.
void StageRunner::weight_backward(int micro_batch) {
  Held held = std::move(held_.extract(micro_batch).mapped());
  held.left.run();
}

}  // namespace muster
