// Groups of parameters that trainings commonly have.
//
//   muster::optim::AdamW optimizer(muster::optim::groups_by_decay(model.parameters(), options));
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace muster::optim {

// Two groups. Parameters of two or more dimensions decay by the options' weight_decay; biases and
// the scales of norms, which have fewer, do not decay.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_by_decay(
    const std::vector<at::Tensor>& parameters, const Options& options) {
  std::vector<at::Tensor> matrices, others;
  for (const at::Tensor& parameter : parameters)
    (parameter.dim() < 2 ? others : matrices).push_back(parameter);
  Options without_decay = options;
  without_decay.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::make_unique<Options>(std::move(without_decay)));
  return groups;
}

// A group for each layer, whose rate is `factor` times that of the next layer; the last one has the
// options' rate. Fine-tuning leaves the first layers nearly as they are so.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_by_layer(
    const std::vector<std::vector<at::Tensor>>& layers, const Options& options, double factor) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto after = static_cast<double>(layers.size() - 1 - i);
    auto own = std::make_unique<Options>(options);
    own->lr(options.lr() * std::pow(factor, after));
    groups.emplace_back(layers[i], std::move(own));
  }
  return groups;
}

}  // namespace muster::optim
