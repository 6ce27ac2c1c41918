// The parameters of a model that are trained, for which a reducer is built. And what all its parameters are,
// to be compared at every forward, as users freeze, unfreeze and register while they train.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "muster/ddp/model_source.h"

namespace muster {

// Each once (shared ones have several names), in registration order.
struct TrainedParameters {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  std::vector<bool> sparse;  // gradients arrive as sparse tensors
};

TrainedParameters trained_parameters(const ModelSource& model);

// Two equal lists can share a reducer.
struct ParameterIdentity {
  const c10::TensorImpl* tensor;  // valid while the model has it
  c10::ScalarType dtype;
  c10::Device device;
  at::DimVector sizes;
  bool trained;
  // It has the memory that it had: set_data() with another size brings other values.
  bool same_values(const ParameterIdentity& other) const;
  friend bool operator==(const ParameterIdentity&, const ParameterIdentity&) = default;
};

ParameterIdentity identity_of(const at::Tensor& parameter);

// Every parameter of the model, a shared one as often as the model has it. Cheap: every forward asks.
std::vector<ParameterIdentity> parameter_identities(const ModelSource& model);
bool any_trained(const std::vector<ParameterIdentity>& identities);

}  // namespace muster
