// c10d asks a backend for such memory by a device's index; the CPU's is -1. Ranks need not agree on
// what is shared: a collective works in place where all ranks' tensors are.
#include "muster/comm/shared_tensor.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "muster/base/error.h"
#include "muster/base/torch_names.h"

namespace muster {

bool has_shared_memory(const ProcessGroup& group, const at::TensorOptions& options) {
  const bool is_plain =
      options.device().is_cpu() && !c10::isComplexType(c10::typeMetaToScalarType(options.dtype()));
  return is_plain && group.c10d()->getBackend(kCPU)->supportsTensorAlloc(-1);
}

Tensor empty_shared(const ProcessGroup& group, int64_t length, const at::TensorOptions& options) {
  if (!has_shared_memory(group, options))
    return at::empty({length}, options);
  try {
    return group.c10d()->getBackend(kCPU)->allocateTensor(length, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable)
      throw;
    return at::empty({length}, options);
  }
}

}  // namespace muster
