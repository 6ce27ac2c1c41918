// A tensor's shape and type in a message. For the sources of this folder; a private header.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "muster/base/strings.h"

namespace muster {

// "[3, 32, 32] Byte".
inline std::string tensor_text(const at::Tensor& tensor) {
  if (!tensor.defined())
    return "an undefined tensor";
  return cat("[", join(tensor.sizes(), ", "), "] ", c10::toString(tensor.scalar_type()));
}

}  // namespace muster
