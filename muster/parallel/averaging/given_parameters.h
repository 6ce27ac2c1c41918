// The parameters that a class of this folder is given: a list of them, or a model, whose parameters
// must then stay those that it has.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <memory>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/checkpoint/tensor_pieces.h"

namespace muster {

struct GivenParameters {
  GivenParameters(Tensors parameters) : tensors(std::move(parameters)) {}
  GivenParameters(std::initializer_list<Tensor> parameters) : tensors(parameters) {}
  GivenParameters(const torch::nn::Module& of);

  Tensors tensors;
  std::shared_ptr<const TensorsOfModel> model{};  // empty for a list
};

// `owner` has made `kept` of what it was given, and has no other references to these tensors.
// Of a list, a parameter that nobody but `owner` has is warned of once. Throws: failed_precondition
// if the model has other parameters now.
void require_present(const char* owner,
                     const std::shared_ptr<const TensorsOfModel>& model,
                     const Tensors& kept);

}  // namespace muster
