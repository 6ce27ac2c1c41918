// Parameters are told apart by the address of their tensor: a shared one comes several times.
#include "muster/ddp/trained_parameters.h"

#include <functional>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/optim/each_once.h"

namespace muster {

// A shared parameter has the first of its names.
TrainedParameters trained_parameters(const ModelSource& model) {
  const auto sparse = model.sparse();
  TrainedParameters found;
  TensorImpls seen;
  for (auto& [name, tensor] : model.parameters()) {
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second)
      continue;
    found.tensors.push_back(tensor);
    found.names.push_back(name);
    found.sparse.push_back(sparse.contains(tensor.unsafeGetTensorImpl()));
    const bool is_first_or_no_vector = found.tensors.size() == 1 || tensor.dim() > 1;
    if (is_first_or_no_vector || found.tensors[found.told_by].dim() <= 1)
      found.told_by = found.tensors.size() - 1;
  }
  return found;
}

Tensors distinct_parameters(const Module& model) {
  return optim::each_once(model.parameters());
}

Tensors distinct_parameters(const torch::jit::Module& model) {
  return optim::each_once(mapped_to<Tensors>(model.parameters(), std::identity()));
}

// An accumulator is compared only where both have one: a frozen parameter keeps its values.
bool ParameterIdentity::same_values(const ParameterIdentity& other) const {
  if (tensor != other.tensor || dtype != other.dtype || device != other.device)
    return false;
  if (sizes != other.sizes || strides != other.strides)
    return false;
  const bool both_trained = trained && other.trained;
  return !both_trained || accumulator == other.accumulator;
}

// Asking for an accumulator makes one where there is none yet.
ParameterIdentity identity_of(const Tensor& parameter) {
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

// Shared parameters come as often as in the model: a list is compared faster than it is made
// unique.
ParameterIdentities parameter_identities(const ModelSource& model) {
  ParameterIdentities found;
  model.for_each_parameter([&](const Tensor& tensor) { found.push_back(identity_of(tensor)); });
  return found;
}

bool any_trained(const ParameterIdentities& identities) {
  return any_of(identities, &ParameterIdentity::trained);
}

}  // namespace muster
