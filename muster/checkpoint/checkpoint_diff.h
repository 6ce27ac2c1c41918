// What two sets of tensors have in common: files, or checkpoints that several ranks wrote. Called by `muster
// checkpoint diff`; without LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/tensor_source.h"

namespace muster {

// A tensor that is not the same in both.
struct TensorDifference {
  enum class Kind { only_in_first, only_in_second, other_kind, other_values };

  std::string name;
  Kind kind = Kind::other_values;
  std::string first;  // "F32[2, 3]"; empty where there is none
  std::string second;
  uint64_t different = 0;         // elements with other bits
  std::optional<double> largest;  // absolute; none: not a number, or of a type that is compared by bits alone
};

struct TensorsDifference {
  uint64_t equal = 0;  // tensors, bit for bit
  std::vector<TensorDifference> tensors;
};

// "only in A", "other type or shape", ...
const char* to_string(TensorDifference::Kind kind);

// Reads piece by piece; `on_bytes` is told how many more have been. Throws: io, invalid_argument.
TensorsDifference compare_tensors(const TensorSource& first, const TensorSource& second,
                                  const std::function<void(size_t)>& on_bytes = {});

}  // namespace muster
