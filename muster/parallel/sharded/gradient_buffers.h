// The buffers in which whole gradients go to their owners, for ScatteredGradients. Those in shared
// memory are kept and used again, since the kernel makes their pages anew each time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

class GradientBuffers {
 public:
  explicit GradientBuffers(ProcessGroup group) : group_(std::move(group)) {}

  // One dimension of that length, with any values. It is free again when the last tensor over its
  // memory goes. From any thread.
  Tensor take(int64_t length, const at::TensorOptions& options);

 private:
  ProcessGroup group_;
  std::mutex mutex_;
  Tensors kept_;  // some are in use
};

}  // namespace muster
