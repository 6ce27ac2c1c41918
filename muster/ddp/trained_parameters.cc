#include "muster/ddp/trained_parameters.h"

#include <torch/nn/modules/embedding.h>

#include <set>

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

std::vector<ParameterIdentity> trained_identities(const torch::nn::Module& model) {
  std::vector<ParameterIdentity> found;
  for (const auto& module : model.modules()) {
    for (const at::Tensor& tensor : module->parameters(/*recurse=*/false)) {
      if (!tensor.requires_grad()) continue;
      found.push_back({tensor.unsafeGetTensorImpl(), tensor.scalar_type(), tensor.device()});
    }
  }
  return found;
}

}  // namespace muster
