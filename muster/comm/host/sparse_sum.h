// The sum of every rank's sparse tensor, for a backend that reduces dense ones. Inside of
// comm/host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "muster/base/tensors.h"

namespace muster {

// Gathers every rank's `mine` into `all`, one after the other.
using AllGather = std::function<void(Tensor& all, Tensor& mine)>;

// Collective. Shapes are the same on every rank; the number of entries may differ. Throws:
// invalid_argument for other shapes; what `all_gather` throws.
Tensor sparse_sum(const Tensor& tensor, int ranks, const AllGather& all_gather);

}  // namespace muster
