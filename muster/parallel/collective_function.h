// What the pieces that divide tensors over a group share: collectives along any dimension, how autograd goes
// back through one, and how ranks compare what they must have alike. Inside of this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

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

// Throws: invalid_argument unless the ranks divide x's `dim`; gives `dim` counted from 0.
int64_t divisible_dim(const char* call, const at::Tensor& x, const ProcessGroup& group, int64_t dim);

// Throws: invalid_argument on every rank, naming the first rank whose `value` is another. Collective: yes.
void expect_same(const std::string& call, const std::string& value, ProcessGroup& group,
                 const std::string& next_step);

// "Float [2, 3], sum of bits 7": equal tensors give equal text.
std::string fingerprint(const at::Tensor& tensor);

}  // namespace muster
