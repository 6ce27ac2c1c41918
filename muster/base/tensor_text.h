// A tensor's type and shape in a message. A template, since this folder knows no LibTorch.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// "Float [2, 3]".
template <class Tensor>
std::string tensor_text(const Tensor& tensor) {
  if (!tensor.defined())
    return "an undefined tensor";
  return cat(toString(tensor.scalar_type()), " [", join(tensor.sizes(), ", "), "]");
}

}  // namespace muster
