#include "muster/ddp/trained_parameters.h"

#include <algorithm>
#include <set>

#include "muster/ddp/gradient_reducer.h"

namespace muster {

TrainedParameters trained_parameters(const ModelSource& model) {
  const auto sparse = model.sparse();
  TrainedParameters found;
  std::set<const c10::TensorImpl*> seen;
  for (auto& [name, tensor] : model.parameters()) {
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second)
      continue;
    found.tensors.push_back(tensor);
    found.names.push_back(name);
    found.sparse.push_back(sparse.contains(tensor.unsafeGetTensorImpl()));
  }
  return found;
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> found;
  std::set<const c10::TensorImpl*> seen;
  for (at::Tensor& tensor : model.parameters()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second)
      found.push_back(std::move(tensor));
  }
  return found;
}

std::vector<at::Tensor> distinct_parameters(const torch::jit::Module& model) {
  std::vector<at::Tensor> found;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : model.parameters()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second)
      found.push_back(tensor);
  }
  return found;
}

bool ParameterIdentity::same_values(const ParameterIdentity& other) const {
  return tensor == other.tensor && dtype == other.dtype && device == other.device &&
         sizes == other.sizes && strides == other.strides &&
         (!trained || !other.trained || accumulator == other.accumulator);
}

ParameterIdentity identity_of(const at::Tensor& parameter) {
  const bool accumulates = parameter.requires_grad() && parameter.is_leaf();
  return {
      .tensor = parameter.unsafeGetTensorImpl(),
      .dtype = parameter.scalar_type(),
      .device = parameter.device(),
      .sizes = at::DimVector(parameter.sizes()),
      .strides = at::DimVector(parameter.strides()),
      .trained = parameter.requires_grad(),
      .accumulator = accumulates ? torch::autograd::impl::grad_accumulator(parameter) : nullptr};
}

std::vector<ParameterIdentity> parameter_identities(const ModelSource& model) {
  std::vector<ParameterIdentity> found;
  model.for_each_parameter([&](const at::Tensor& tensor) { found.push_back(identity_of(tensor)); });
  return found;
}

bool any_trained(const std::vector<ParameterIdentity>& identities) {
  return std::any_of(identities.begin(), identities.end(), [](const ParameterIdentity& identity) {
    return identity.trained;
  });
}

}  // namespace muster
