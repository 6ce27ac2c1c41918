// LibTorch's tensor, and a list of them as its own functions take and return it.
#pragma once

#include <vector>

namespace at {
class Tensor;
}

namespace muster {

using at::Tensor;
using Tensors = std::vector<Tensor>;

}  // namespace muster
