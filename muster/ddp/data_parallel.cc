// A replica is a clone of the module whose parameters are not leaves: they hang on copies of the
// model's own parameters, so that gradients flow back to these. Clones and copies are made anew in
// every step, as Python makes them: a clone of before would compute with the options and members
// that the model had then.
#include "muster/ddp/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include <exception>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/stream_order.h"
#include "muster/ddp/layer_members.h"
#include "muster/ddp/own_numbers.h"
#include "muster/ddp/parameter_uses.h"

namespace muster {

namespace {

// A copy to the CPU is waited for: it would be read before the GPU has written it.
Tensor copy_on(Device device, const Tensor& tensor) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu(), /*copy=*/true);
}

// Copies parameters to another device, and their gradients back.
class ToReplica : public torch::autograd::Function<ToReplica> {
 public:
  static Tensors forward(AutogradContext* context, at::TensorList parameters, Device device) {
    auto copies =
        mapped(parameters, [&](const Tensor& parameter) { return copy_on(device, parameter); });
    context->saved_data["device"] = parameters[0].device();
    context->set_materialize_grads(false);  // an unused parameter has no gradient, as in the model
    return copies;
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    Tensors found;
    for (const Tensor& gradient : gradients)
      found.push_back(gradient.defined() ? gradient.to(context->saved_data["device"].toDevice())
                                         : gradient);
    found.emplace_back();  // the device has no gradient
    return found;
  }
};

// A module's train() also sets its children, so that parents come first.
void copy_modes(const Module& from, const Module& to) {
  const auto sources = from.modules(), targets = to.modules();
  for (const size_t i : indices_of(targets))
    targets[i]->train(sources[i]->is_training());
}

// Buffers of the replicas are copies, and what they become is not copied back.
void copy_buffers(const Module& from, const Module& to, Device device) {
  const auto sources = from.buffers();
  auto targets = to.buffers();
  for (const size_t i : indices_of(targets)) {
    if (targets[i].defined())
      targets[i].set_data(copy_on(device, sources[i].detach()));
  }
}

// Makes a replica's parameters hang on copies of the model's, by setting their edges of the graph.
void link_parameters(const Module& from, const Module& to, Device device) {
  const auto sources = from.parameters();
  auto targets = to.parameters();
  const auto copies = ToReplica::apply(at::TensorList(sources), device);
  for (const size_t i : indices_of(targets)) {
    targets[i].set_data(copies[i].detach());
    const bool trained = sources[i].requires_grad() && copies[i].grad_fn();
    torch::autograd::impl::set_gradient_edge(
        targets[i],
        trained ? torch::autograd::impl::gradient_edge(copies[i]) : torch::autograd::Edge());
    if (!trained)
      targets[i].set_requires_grad(false);
  }
}

// The stream that is current in this thread; none on the CPU.
std::optional<c10::Stream> gpu_stream_of(Device device) {
  return device.is_cpu() ? std::nullopt : std::optional(current_stream_of(device));
}

}  // namespace

// The first device computes with the model itself.
ModelReplicas::ModelReplicas(ModulePtr model, std::vector<Device> devices, bool copies_once)
    : model_(std::move(model)), devices_(std::move(devices)), copies_once_(copies_once) {
  if (devices_.empty()) {
    throw invalid_argument(
        "DataParallel: expected one or more devices, got none; give {{torch::kCUDA, 0}, …}");
  }
  for (const auto& item : model_->named_parameters()) {
    if (item.value().device() == devices_[0])
      continue;
    throw invalid_argument("DataParallel: expected the model on the first device, ",
                           devices_[0].str(),
                           ", got '",
                           item.key(),
                           "' on ",
                           item.value().device().str(),
                           "; call model->to() first");
  }
}

// A clone's reset() draws new values of the parameters before it gets the model's.
void ModelReplicas::make(size_t count) {
  const NoGradGuard no_grad;
  const OwnNumbers own_numbers;
  replicas_ = {model_};
  copied_ = model_->modules();
  for (size_t i = 1; i < count; ++i)
    replicas_.push_back(model_->clone(devices_[i]));
}

// Clones that are kept are made again where the model has got or lost tensors or modules.
void ModelReplicas::refresh(size_t count) {
  const bool has_changed = replicas_.empty() || copied_ != model_->modules() ||
                           replicas_.back()->parameters().size() != model_->parameters().size() ||
                           replicas_.back()->buffers().size() != model_->buffers().size();
  if (!copies_once_ || has_changed)
    make(copies_once_ ? devices_.size() : count);
  has_ties_ |= !assigned_members(*model_).empty();
  for (size_t i = 1; i < count; ++i) {
    copy_modes(*model_, *replicas_[i]);
    if (has_ties_)
      copy_member_ties(*model_, *replicas_[i], devices_[i]);
    copy_buffers(*model_, *replicas_[i], devices_[i]);
    if (!model_->parameters().empty())
      link_parameters(*model_, *replicas_[i], devices_[i]);
  }
}

// The first call is made in the caller's thread. All others have its modes of autograd and its
// streams, on which their inputs were made.
void ModelReplicas::for_each(size_t count, const std::function<void(size_t)>& body) const {
  std::vector<std::exception_ptr> failures(count);
  const at::ThreadLocalState state;
  const auto streams = mapped(devices_, gpu_stream_of);
  const auto run = [&](size_t i) {
    try {
      const at::ThreadLocalStateGuard same_modes(state);
      const c10::DeviceGuard device(devices_[i]);
      const c10::OptionalStreamGuard stream(streams[i]);
      translate_failures(cat("DataParallel: replica ", i, " on ", devices_[i].str()),
                         [&] { body(i); });
    } catch (...) {
      failures[i] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i)
    threads.emplace_back(run, i);
  run(0);
  for (auto& thread : threads)
    thread.join();
  for (const auto& failure : failures) {
    if (failure)
      std::rethrow_exception(failure);
  }
}

bool ModelReplicas::is_to_compare(size_t count) const {
  return !was_compared_ && count > 1 && at::GradMode::is_enabled();
}

void ModelReplicas::warn_of_lost_tie(const TensorLists& outputs) {
  was_compared_ = true;
  const auto uses = mapped_indices(outputs.size(), [&](size_t i) {
    return parameter_uses(outputs[i], replicas_[i]->parameters());
  });
  const auto tie = lost_tie(uses, model_->parameters());
  if (!tie)
    return;
  const auto names = model_->named_parameters().keys();
  log_warning(
      "DataParallel: expected copies that compute with what the model computes with, got '",
      names[tie->in_copies],
      "' in the place of '",
      names[tie->in_model],
      "' on every device but the first: a member that was assigned (head->weight = "
      "embed->weight) is lost in copies of a class that is no layer of LibTorch's, which train "
      "two weights; tie them by register_parameter with the same tensor, or share the module");
}

namespace detail {

// A scalar is copied to all devices.
Tensors scatter(const Tensor& tensor, const std::vector<Device>& devices, int64_t dim) {
  if (tensor.dim() == 0)
    return mapped(devices, [&](Device device) { return tensor.to(device); });
  auto parts = tensor.chunk(std::ssize(devices), dim);
  for (const size_t i : indices_of(parts))
    parts[i] = parts[i].to(devices[i]);
  return parts;
}

// Scalars become a vector, as in Python.
Tensor gather(const Tensors& parts, Device device, int64_t dim) {
  const auto here = mapped(parts, [&](const Tensor& part) { return part.to(device); });
  return here[0].dim() == 0 ? at::stack(here) : at::cat(here, dim);
}

}  // namespace detail

}  // namespace muster
