// What the classes that divide tensors over a group share: collectives along any dimension, and
// their autograd functions. Only for this folder; users call group_functions.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

using TensorMap = std::function<Tensor(const Tensor&)>;

// Computes forward(x), with backward(gradient) as its derivative; autograd does not record the
// inside of either. A backward made of such functions can be differentiated again.
Tensor with_backward(const Tensor& x, const TensorMap& forward, TensorMap backward);

// The collectives of these names, returning new tensors. Those with `dim` work along it; `size`
// must be divisible.
Tensor summed(const Tensor& x, ProcessGroup& group);
Tensor gathered(const Tensor& x, ProcessGroup& group, int64_t dim);
Tensor sum_scattered(const Tensor& x, ProcessGroup& group, int64_t dim);
Tensor own_part(const Tensor& x, const ProcessGroup& group, int64_t dim);
// Sends part r along `scatter_dim` to rank r; joins the received parts along `gather_dim`.
Tensor exchanged(const Tensor& x, ProcessGroup& group, int64_t scatter_dim, int64_t gather_dim);

// A range of rows. If `total` is not a multiple of the ranks, the first ranks have one row more.
struct OwnRows {
  int64_t begin = 0;
  int64_t length = 0;
};
OwnRows own_rows(int64_t total, const ProcessGroup& group);
// The ranges of all ranks, joined.
Tensor gathered_rows(const Tensor& mine, int64_t total, ProcessGroup& group);

// For a backward that cannot be differentiated itself. Throws: failed_precondition when that is
// requested.
void refuse_second_derivative(const char* call);

// `dim` counted from 0. Throws: invalid_argument if x has no such dimension; the second function
// also if its size is not a multiple of the ranks.
int64_t existing_dim(const char* call, const Tensor& x, const ProcessGroup& group, int64_t dim);
int64_t divisible_dim(const char* call, const Tensor& x, const ProcessGroup& group, int64_t dim);

}  // namespace muster
