// A list of tensors, as LibTorch's own functions take and return it.
#pragma once

#include <vector>

namespace at {
class Tensor;
}

namespace muster {

using Tensors = std::vector<at::Tensor>;

}  // namespace muster
