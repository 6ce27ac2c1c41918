// The trained parameters of a model, for which a reducer is built; and the identities of all its
// parameters, compared at every forward because users freeze, unfreeze and register during
// training.
#pragma once

#include <ATen/DimVector.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/torch_compat.h"
#include "muster/ddp/model_source.h"

namespace muster {

// Each once (shared ones have several names), in registration order.
struct TrainedParameters {
  Tensors tensors;
  Strings names;
  std::vector<bool> sparse;  // gradients are sparse tensors
  // The one whose gradients tell ranks' samples apart: the last that is no vector. A loss may give
  // a bias the same gradient whatever the samples are, and the first is often an embedding, most of
  // whose gradient is zero.
  size_t told_by = 0;
};

TrainedParameters trained_parameters(const ModelSource& model);

// Two equal lists can share a reducer.
struct ParameterIdentity {
  const TensorImpl* tensor;  // valid while the model has it
  ScalarType dtype;
  Device device;
  at::DimVector sizes;
  at::DimVector strides;
  bool trained;
  AutogradNodePtr
      accumulator;  // of its gradients, on which hooks hang; null for one that is not trained
  // False if it may have got other values: set_data() with another size brings some, and
  // torch::load a new accumulator.
  bool same_values(const ParameterIdentity& other) const;
  friend bool operator==(const ParameterIdentity&, const ParameterIdentity&) = default;
};
using ParameterIdentities = std::vector<ParameterIdentity>;

ParameterIdentity identity_of(const Tensor& parameter);

// Every parameter of the model, a shared one as often as in the model. Must be cheap: every forward
// calls it.
ParameterIdentities parameter_identities(const ModelSource& model);
bool any_trained(const ParameterIdentities& identities);

}  // namespace muster
