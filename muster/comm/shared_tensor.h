// Tensors in memory that all ranks of a host reach, which collectives read and write in place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// Whether the group's backend has such memory for tensors of these options. Complex numbers have
// none.
bool has_shared_memory(const ProcessGroup& group, const at::TensorOptions& options);

// One dimension of that length, with any values: in shared memory where there is such memory, and
// room in it. It may outlive the group.
Tensor empty_shared(const ProcessGroup& group, int64_t length, const at::TensorOptions& options);

}  // namespace muster
