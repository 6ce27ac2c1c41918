#include "muster/ddp/trained_parameters.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <set>

#include "muster/ddp/gradient_reducer.h"

namespace muster {

namespace {

std::set<const c10::TensorImpl*> sparse_weights(const torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> sparse;
  for (const auto& module : model.modules()) {
    if (const auto* embedding = module->as<torch::nn::Embedding>();
        embedding && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = module->as<torch::nn::EmbeddingBag>(); bag && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  return sparse;
}

}  // namespace

TrainedParameters trained_parameters(const torch::nn::Module& model) {
  const auto sparse = sparse_weights(model);
  TrainedParameters found;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    found.tensors.push_back(tensor);
    found.names.push_back(item.key());
    found.sparse.push_back(sparse.contains(tensor.unsafeGetTensorImpl()));
  }
  return found;
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> found;
  std::set<const c10::TensorImpl*> seen;
  for (at::Tensor& tensor : model.parameters()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(std::move(tensor));
  }
  return found;
}

bool ParameterIdentity::same_values(const ParameterIdentity& other) const {
  return tensor == other.tensor && dtype == other.dtype && device == other.device && sizes == other.sizes;
}

ParameterIdentity identity_of(const at::Tensor& parameter) {
  return {.tensor = parameter.unsafeGetTensorImpl(),
          .dtype = parameter.scalar_type(),
          .device = parameter.device(),
          .sizes = at::DimVector(parameter.sizes()),
          .trained = parameter.requires_grad()};
}

std::vector<ParameterIdentity> parameter_identities(const torch::nn::Module& model) {
  // The parameters themselves: LibTorch's own lists are copies, with all their names put together.
  struct Access : torch::nn::Module {
    static auto own_parameters() { return &Access::parameters_; }
  };
  std::vector<ParameterIdentity> found;
  model.apply([&](const torch::nn::Module& module) {
    for (const auto& item : module.*Access::own_parameters()) {
      if (item.value().defined()) found.push_back(identity_of(item.value()));
    }
  });
  return found;
}

bool any_trained(const std::vector<ParameterIdentity>& identities) {
  return std::any_of(identities.begin(), identities.end(),
                     [](const ParameterIdentity& identity) { return identity.trained; });
}

}  // namespace muster
