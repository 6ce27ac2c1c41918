// The parameters of a model that are trained: what a reducer is built for, and what it is compared with at
// every forward, as users freeze and unfreeze while they train.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace muster {

// Each once (shared ones have several names), in registration order.
struct TrainedParameters {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  std::vector<bool> sparse;  // gradients arrive as sparse tensors
};

TrainedParameters trained_parameters(const torch::nn::Module& model);

// What a reducer depends on. Two equal lists can share one.
struct ParameterIdentity {
  const c10::TensorImpl* tensor;  // valid while the model has it
  c10::ScalarType dtype;
  c10::Device device;
  at::DimVector sizes;
  friend bool operator==(const ParameterIdentity&, const ParameterIdentity&) = default;
};

// Every trained parameter of the model, a shared one as often as the model has it. Cheap: every forward asks.
std::vector<ParameterIdentity> trained_identities(const torch::nn::Module& model);

}  // namespace muster
