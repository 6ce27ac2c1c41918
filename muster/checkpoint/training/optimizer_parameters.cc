// Two layers that share a weight make LibTorch list it twice. An optimizer of such a list is
// refused.
#include "muster/checkpoint/training/optimizer_parameters.h"

#include <unordered_set>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"

namespace muster {

Tensors parameters_of(Optimizer& optimizer) {
  return concatenated(optimizer.param_groups(),
                      [](const auto& group) -> const auto& { return group.params(); });
}

Doubles rates_of_groups(const Optimizer& optimizer) {
  return mapped(optimizer.param_groups(),
                [](const auto& group) { return group.options().get_lr(); });
}

// Tensors are told apart by their implementation: two handles of one parameter are equal there.
void require_each_once(const std::string& owner,
                       const Tensors& parameters,
                       const std::function<std::string(const Tensor&)>& name_of) {
  std::unordered_set<const TensorImpl*> seen;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    throw invalid_argument(
        owner,
        ": expected each parameter once in an optimizer, got ",
        name_of(parameter),
        " twice, as LibTorch's net->parameters() has a weight that two layers share; make "
        "the optimizer of model.parameters() or muster::distinct_parameters(*net)");
  }
}

std::string shape_as_name(const Tensor& parameter) {
  return cat("a parameter of shape [", sizes_text(parameter), "]");
}

}  // namespace muster
