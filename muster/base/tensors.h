// LibTorch's tensor, lists of them as its own functions take and return them, and tensors by name.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}

namespace muster {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using NamedTensors = std::map<std::string, Tensor>;
using NamedTensorList = std::vector<std::pair<std::string, Tensor>>;  // in a model's order
using TensorLists = std::vector<Tensors>;

}  // namespace muster
