// Compares two sets of tensors: files, or checkpoints written by several ranks. Called by `muster
// checkpoint diff`; without LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/files/sha256.h"
#include "muster/checkpoint/files/tensor_source.h"

namespace muster {

// A tensor that differs between the two.
struct TensorDifference {
  enum class Kind { only_in_first, only_in_second, other_kind, other_values };

  std::string name;
  Kind kind = Kind::other_values;
  std::string first;  // "F32[2, 3]"; empty if absent
  std::string second;
  uint64_t different = 0;  // elements whose bits differ
  std::optional<double> largest =
      {};  // absolute; none: not a number, or a type compared only by bits
};

struct TensorsDifference {
  uint64_t equal = 0;  // tensors that are equal bit for bit
  std::vector<TensorDifference> tensors;
};

// "only in A", "other type or shape", ...
const char* to_string(TensorDifference::Kind kind);

// Compares piece by piece; `on_bytes` gets the number of bytes read since its last call. Throws:
// io, invalid_argument.
TensorsDifference compare_tensors(const TensorSource& first,
                                  const TensorSource& second,
                                  const OnBytes& on_bytes = {});

}  // namespace muster
