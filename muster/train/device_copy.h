// A tensor on another device, without waiting where that is safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"

namespace muster {

// Returns the tensor itself if it is already there. Copies to the CPU are waited for: otherwise
// LibTorch returns memory that the GPU has yet to write, and nothing on the CPU waits for that.
// Blocking: only to the CPU.
inline Tensor copied_to(Device device, const Tensor& tensor) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace muster
