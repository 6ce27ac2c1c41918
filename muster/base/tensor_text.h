// A tensor's shape, and its type, in a message. A template, since this folder knows no LibTorch.
#pragma once

#include <string>

#include "muster/base/strings.h"

namespace muster {

// "2, 3".
template <class Tensor>
std::string sizes_text(const Tensor& tensor) {
  return join(tensor.sizes(), ", ");
}

// "Float [2, 3]".
template <class Tensor>
std::string tensor_text(const Tensor& tensor) {
  if (!tensor.defined())
    return "an undefined tensor";
  return cat(toString(tensor.scalar_type()), " [", sizes_text(tensor), "]");
}

}  // namespace muster
