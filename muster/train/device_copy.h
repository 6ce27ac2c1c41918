// A tensor on another device, without waiting where that is safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace muster {

// Itself where it is there already. A copy to the CPU is waited for: without that, LibTorch gives memory that
// the GPU has still to write, and nothing on the CPU's side waits for it. Blocking: only to the CPU.
inline at::Tensor copied_to(c10::Device device, const at::Tensor& tensor) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace muster
