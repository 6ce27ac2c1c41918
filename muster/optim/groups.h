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

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/optim/each_once.h"
#include "muster/optim/parts.h"

namespace muster::optim {

// Throws: invalid_argument for none.
inline void expect_parameters(const char* call, size_t count) {
  if (count == 0) {
    throw invalid_argument(call, ": expected parameters, got none; pass those of the model");
  }
}

// A part of any parameter has one dimension, as a bias has, and lies in no layer.
// Throws: invalid_argument for a rank's part.
inline void expect_whole(const char* call, const Tensors& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!is_part(parameter))
      continue;
    throw invalid_argument(
        call,
        ": expected the whole parameters of a model, got a rank's part of ",
        plural(parameter.numel(), "element"),
        ", which has lost its parameter's shape; make the groups of net->parameters(), and "
        "pass sharded.parameters(groups) to the optimizer");
  }
}

// Two groups. Parameters of two or more dimensions decay by the options' weight_decay; biases and
// the scales of norms, which have fewer, do not decay. A parameter that is named twice comes once.
// Throws: invalid_argument for no parameters, and for a rank's parts of them
// (FullySharded::parameters()): make groups of the model's, then FullySharded::parameters(groups).
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_by_decay(const Tensors& parameters,
                                                               const Options& options) {
  expect_parameters("groups_by_decay", parameters.size());
  expect_whole("groups_by_decay", parameters);
  Tensors matrices, others;
  for (const at::Tensor& parameter : each_once(parameters))
    (parameter.dim() < 2 ? others : matrices).push_back(parameter);
  Options without_decay = options;
  without_decay.weight_decay(0);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::make_unique<Options>(options));
  groups.emplace_back(std::move(others), std::make_unique<Options>(std::move(without_decay)));
  return groups;
}

// A group for each layer, whose rate is `factor` times that of the next layer; the last one has the
// options' rate. Fine-tuning leaves the first layers nearly as they are so. Throws:
// invalid_argument for no layers, for a factor that is not above 0 and finite, for a parameter of
// two layers, which has no one rate, and for a rank's parts of parameters, as groups_by_decay.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> groups_by_layer(const std::vector<Tensors>& layers,
                                                               const Options& options,
                                                               double factor) {
  expect_parameters("groups_by_layer", layers.size());
  for (const Tensors& layer : layers)
    expect_whole("groups_by_layer", layer);
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw invalid_argument(
        "groups_by_layer: expected a finite factor above 0, got ", factor, "; 0.5 to 1 is common");
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const size_t i : indices_of(layers)) {
    const auto after = static_cast<double>(layers.size() - 1 - i);
    auto own = std::make_unique<Options>(options);
    own->lr(options.lr() * std::pow(factor, after));
    groups.emplace_back(layers[i], std::move(own));
  }
  keep_each_once("groups_by_layer", groups);
  return groups;
}

}  // namespace muster::optim
