// Gradients are given to single kernels in lots of one device and type. LibTorch's own grouping
// makes the lots, since their order decides over the last bit of a sum.
#include "muster/train/gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/ForeachUtils.h>

#include <unordered_set>

#include "muster/base/torch_names.h"
#include "muster/train/device_copy.h"

namespace muster {

// A parameter that is listed twice has one gradient, which counts once.
Tensors gradient_values(const Tensors& parameters) {
  const NoGradGuard no_grad;
  Tensors found;
  std::unordered_set<const TensorImpl*> seen;
  for (const Tensor& parameter : parameters) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined())
      continue;
    if (gradient.is_sparse() && !gradient.is_coalesced())
      gradient = gradient.coalesce();
    found.push_back(gradient.is_sparse() ? gradient._values() : gradient.detach());
  }
  return found;
}

TensorLists by_device_and_type(const Tensors& tensors) {
  TensorLists lots;
  if (tensors.empty())
    return lots;
  const at::native::nested_optional_tensorvec_t lists{{tensors.begin(), tensors.end()}};
  for (const auto& [kind, found] : at::native::_group_tensors_by_first_tensors_device_and_dtype(
           lists, /*with_indices=*/false)) {
    auto& lot = lots.emplace_back();
    for (const auto& tensor : found.first[0])
      lot.push_back(*tensor);
  }
  return lots;
}

void multiply(const Tensors& gradients, const Tensor& factor) {
  const NoGradGuard no_grad;
  for (const auto& lot : by_device_and_type(gradients)) {
    const Tensor here = copied_to(lot[0].device(), factor);
    // One kernel takes all of a lot where the factor has its type.
    at::_foreach_mul_(lot, lot[0].scalar_type() == kFloat ? here.to(kFloat) : here);
  }
}

// Each lot says on its own device whether it found one; the answers meet on the scale's.
Tensor multiply_and_find_nonfinite(const Tensors& gradients, const Tensor& inverse_scale) {
  const NoGradGuard no_grad;
  Tensor found = at::zeros({}, inverse_scale.options());
  Tensors real;  // the kernel does not know complex numbers
  real.reserve(gradients.size());
  for (const Tensor& gradient : gradients)
    real.push_back(gradient.is_complex() ? at::view_as_real(gradient) : gradient);
  for (const auto& lot : by_device_and_type(real)) {
    // The kernel wants scale and result on the device of the lot.
    const Device device = lot[0].device();
    if (device == found.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(lot, found, inverse_scale);
      continue;
    }
    Tensor there = at::zeros({}, inverse_scale.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(lot, there, copied_to(device, inverse_scale));
    found = at::maximum(found, copied_to(found.device(), there));
  }
  return found;
}

}  // namespace muster
