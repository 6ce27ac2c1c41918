// A tensor's size in bytes, with the sign that sums and statistics have.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/base/tensors.h"

namespace muster {

inline int64_t bytes_of_tensor(const Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

}  // namespace muster
