// What the pieces that divide tensors over a group share: collectives along any dimension, and how autograd
// goes back through one. Inside of this folder; group_functions.h is what users call.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "muster/comm/process_group.h"

namespace muster {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

// forward(x), with backward(gradient) as its derivative; neither records what it does inside. A backward that
// is itself made of such functions can be differentiated again.
at::Tensor with_backward(const at::Tensor& x, const TensorMap& forward, TensorMap backward);

// Fresh tensors; the collectives of their names. Those with `dim` work along it; `size` must be divisible.
at::Tensor summed(const at::Tensor& x, ProcessGroup& group);
at::Tensor gathered(const at::Tensor& x, ProcessGroup& group, int64_t dim);
at::Tensor sum_scattered(const at::Tensor& x, ProcessGroup& group, int64_t dim);
at::Tensor own_part(const at::Tensor& x, const ProcessGroup& group, int64_t dim);
// Part r along `scatter_dim` goes to rank r; what comes is joined along `gather_dim`.
at::Tensor exchanged(const at::Tensor& x, ProcessGroup& group, int64_t scatter_dim, int64_t gather_dim);

// A stretch of rows. Where the ranks do not divide `total`, the first ones have one more.
struct OwnRows {
  int64_t begin = 0;
  int64_t length = 0;
};
OwnRows own_rows(int64_t total, const ProcessGroup& group);
// Such stretches of all ranks, joined.
at::Tensor gathered_rows(const at::Tensor& mine, int64_t total, ProcessGroup& group);

// For a backward that cannot be differentiated itself. Throws: failed_precondition where that is asked for.
void refuse_second_derivative(const char* call);

// `dim` counted from 0. Throws: invalid_argument where x has none such; the second also where the ranks do
// not divide its size.
int64_t existing_dim(const char* call, const at::Tensor& x, const ProcessGroup& group, int64_t dim);
int64_t divisible_dim(const char* call, const at::Tensor& x, const ProcessGroup& group, int64_t dim);

}  // namespace muster
