// Which tensors of a file are which of a model, after the caller's names: what load_weights
// compares with the model, and reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

// What the file has of a tensor of the model.
struct FoundWeight {
  Strings parts{};    // their names in the file; empty for one it lacks
  Strings missing{};  // the names that it lacks
  Strings copies{};   // names of the same tensor, which must be equal
  WeightForm form = WeightForm::as_is;
  TensorEntry kind{};  // as the model gets it
};
using FoundWeights = std::map<std::string, FoundWeight>;  // by the model's names

// Throws: invalid_argument for two tensors that become one and are no copies of each other.
FoundWeights find_weights(const TensorEntries& entries,
                          const LoadWeightsOptions& options,
                          const std::string& path);

// Reads it as the model gets it: its parts transposed, if they are so in the file, and joined.
// Throws: invalid_argument if copies differ; whatever `file` throws.
Tensor read_found(const FoundWeight& weight, const WeightReader& file, const std::string& path);

// `next` is what the caller can do about it.
inline constexpr FileRefusal refuse_weights{"load_weights"};

}  // namespace muster
