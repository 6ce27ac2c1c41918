// Kernels take lists of tensors that have one device, one type and the same layout in memory.
#include "muster/optim/lots.h"

#include <optional>

#include <ATen/Functions.h>

#include "muster/base/error.h"
#include "muster/base/mapped.h"

namespace muster::optim {

Tensors with_gradients(const OptimizerParamGroup& group) {
  return filtered(group.params(),
                  [&](const Tensor& parameter) { return parameter.grad().defined(); });
}

// One without memory is of a fully sharded model, which tells LibTorch's own step what is wrong.
bool is_for_kernels(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  return parameter.storage().nbytes() > 0 && gradient.layout() == kStrided &&
         parameter.is_floating_point() && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() && parameter.is_non_overlapping_and_dense();
}

bool are_on_one_gpu(const ParameterGroups& groups) {
  std::optional<Device> device;
  return hold_for_all(groups, [&](const Tensor& parameter) {
    if (!device)
      device = parameter.device();
    return device->is_cuda() && parameter.device() == *device;
  });
}

bool is_like(const Tensor& state, const Tensor& parameter) {
  return !state.defined() ||
         (state.scalar_type() == parameter.scalar_type() && state.device() == parameter.device());
}

Tensor laid_out_as(const Tensor& model, const Tensor& tensor) {
  if (tensor.strides() == model.strides())
    return tensor;
  return at::empty_like(model).copy_(tensor);
}

Lot& Lots::add(const Tensor& parameter, bool is_first_step) {
  Lot& lot = lots_[{parameter.device().index(), parameter.scalar_type(), is_first_step}];
  lot.parameters.push_back(parameter);
  lot.gradients.push_back(laid_out_as(parameter, parameter.grad()));
  return lot;
}

const Tensor& StepCounts::of(const Tensor& parameter, int64_t step) {
  Tensor& count = counts_[{parameter.device().index(), step}];
  if (count.defined())
    return count;
  if (graph_ != nullptr)
    return count = graph_->counts.at(step).steps - left_out_;
  count = at::full({}, step, parameter.options().dtype(kFloat).requires_grad(false));
  if (left_out_.defined())
    count.sub_(left_out_);
  return count;
}

void expect_state_before(const StepKind& kind) {
  if (kind.graph == nullptr)
    return;
  throw failed_precondition(
      "optimizer: expected parameters that have taken steps before they are captured in a "
      "CUDA graph, got one that has a gradient for the first time; use the same parameters "
      "in every step");
}

}  // namespace muster::optim
