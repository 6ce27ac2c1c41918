// The sum of every rank's sparse tensor, for a backend that reduces dense ones. Inside of
// comm/host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace muster {

// Gathers every rank's `mine` into `all`, one after the other.
using AllGather = std::function<void(at::Tensor& all, at::Tensor& mine)>;

// Collective. Shapes are the same on every rank; the number of entries may differ. Throws:
// invalid_argument for other shapes; what `all_gather` throws.
at::Tensor sparse_sum(const at::Tensor& tensor, int ranks, const AllGather& all_gather);

}  // namespace muster
