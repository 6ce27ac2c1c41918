// What the host changes from step to step, in the GPU's memory: the kernels of a CUDA graph find it
// there. For the optimizers of optim.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "muster/base/tensors.h"

namespace muster::optim {

struct GraphNumbers {
  Tensors rates{};  // of each group, float32
  struct Count {
    Tensor steps{};             // float32
    void* parameter = nullptr;  // one that the graph steps on, if any has taken so many
  };
  std::map<int64_t, Count> counts{};  // by the number at the capture
  std::vector<void*> parameters{};    // that the graph steps on
};

// Where the tensor's values are, which a graph remembers. 0: nowhere.
inline uint64_t address_of(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) : 0;
}

}  // namespace muster::optim
