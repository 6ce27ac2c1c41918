// How often a forward reads each parameter, as its graph shows it. A copy of a model reads what the
// model reads, unless a member of some class was assigned, which no copy knows. Used by
// DataParallel, and by a reducer whose forwards differ.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"

namespace muster {

using ParameterUses = Ints;  // by the parameters' numbers

// Parameters are leaves, or hang on others' graphs.
ParameterUses parameter_uses(const Tensors& outputs, const Tensors& parameters);

// A parameter that all copies read and the model does not, and the one that the model reads so
// often more instead.
struct LostTie {
  size_t in_copies;
  size_t in_model;
};
// The first of `uses` is the model's.
std::optional<LostTie> lost_tie(const std::vector<ParameterUses>& uses, const Tensors& parameters);

}  // namespace muster
