#include "muster/ddp/renormalized.h"

#include <torch/nn/modules/embedding.h>

#include <string>

#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

// LibTorch has two modules that do it.
ModelTensors weights_with_max_norm(const Module& model) {
  ModelTensors found;
  const auto look_at = [&](const std::string& name, const auto* embedding) {
    if (embedding != nullptr && embedding->options.max_norm())
      found.push_back({name, embedding->weight});
  };
  model.apply([&](const std::string& name, const Module& module) {
    look_at(name, module.as<torch::nn::Embedding>());
    look_at(name, module.as<torch::nn::EmbeddingBag>());
  });
  return found;
}

ModelTensors renormalized_weights(const Module& model) {
  return filtered(weights_with_max_norm(model),
                  [](const NamedTensor& weight) { return weight.tensor.requires_grad(); });
}

// The weights may have been meant to be trained so, as in PyTorch, so it is no error.
void warn_of_renormalized(const char* owner,
                          const ModelTensors& weights,
                          const ProcessGroup& group) {
  if (group.size() == 1 || group.rank() != 0)
    return;
  for (const NamedTensor& weight : weights) {
    log_warning(
        owner,
        ": expected forwards that leave the weights as they are, got ",
        weight.name.empty() ? "an embedding" : cat("the embedding '", weight.name, "'"),
        " with max_norm, whose forward scales the rows that a rank looks up, on that rank "
        "alone "
        "(rank ",
        group.job_rank(),
        "): the ranks' weights will differ; leave max_norm out, and after each optimizer step "
        "call torch::embedding_renorm_ for all rows, on every rank");
  }
}

}  // namespace muster
