// Parameters are told apart by the address of their tensor, not by the memory that it has.
#include "muster/optim/each_once.h"

#include <unordered_set>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"

namespace muster::optim {

Tensors each_once(const Tensors& tensors) {
  std::unordered_set<const TensorImpl*> seen;
  return filtered(tensors, [&](const Tensor& tensor) {
    return seen.insert(tensor.unsafeGetTensorImpl()).second;
  });
}

// Two groups may have two rates, so that nobody can say which step is meant.
void keep_each_once(const std::string& owner, ParameterGroups& groups, const std::string& where) {
  std::unordered_set<const TensorImpl*> in_groups;
  for (OptimizerParamGroup& group : groups) {
    group.params() = each_once(group.params());
    for (const Tensor& parameter : group.params()) {
      if (in_groups.insert(parameter.unsafeGetTensorImpl()).second)
        continue;
      throw invalid_argument(owner,
                             ": expected each parameter in one group, got one of shape [",
                             sizes_text(parameter),
                             "] in two",
                             where,
                             "; take it out of one");
    }
  }
}

}  // namespace muster::optim
