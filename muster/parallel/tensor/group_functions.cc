// The functions of tensor parallelism, in pairs: the backward of each is its partner, so second
// derivatives work too. Forward and backward of a pair may be called in either order.
#include "muster/parallel/tensor/group_functions.h"

#include <cstdint>

#include "muster/parallel/tensor/group_collectives.h"

namespace muster {

// The forward exchanges nothing; the ranks meet in the backward.
at::Tensor copy_to_group(const at::Tensor& x, ProcessGroup group) {
  return with_backward(
      x,
      [](const at::Tensor& same) { return same; },
      [group](const at::Tensor& gradient) { return reduce_from_group(gradient, group); });
}

// The ranks meet in the forward; the backward exchanges nothing.
at::Tensor reduce_from_group(const at::Tensor& x, ProcessGroup group) {
  return with_backward(
      x,
      [&](const at::Tensor& summand) { return summed(summand, group); },
      [group](const at::Tensor& gradient) { return copy_to_group(gradient, group); });
}

// Every rank has the same gradient of the whole, so the backward takes this rank's part of it.
at::Tensor gather_from_group(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  dim = existing_dim("gather_from_group", x, group, dim);
  return with_backward(
      x,
      [&](const at::Tensor& part) { return gathered(part, group, dim); },
      [group, dim](const at::Tensor& gradient) { return scatter_to_group(gradient, group, dim); });
}

at::Tensor scatter_to_group(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  dim = divisible_dim("scatter_to_group", x, group, dim);
  return with_backward(
      x,
      [&](const at::Tensor& whole) { return own_part(whole, group, dim); },
      [group, dim](const at::Tensor& gradient) { return gather_from_group(gradient, group, dim); });
}

// The ranks use the whole differently, so their gradients are summed before they are divided.
at::Tensor gather_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  dim = existing_dim("gather_sequence", x, group, dim);
  return with_backward(
      x,
      [&](const at::Tensor& part) { return gathered(part, group, dim); },
      [group, dim](const at::Tensor& gradient) {
        return reduce_scatter_sequence(gradient, group, dim);
      });
}

// Each rank keeps the sum of its own part.
at::Tensor reduce_scatter_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim) {
  dim = divisible_dim("reduce_scatter_sequence", x, group, dim);
  return with_backward(
      x,
      [&](const at::Tensor& summand) { return sum_scattered(summand, group, dim); },
      [group, dim](const at::Tensor& gradient) { return gather_sequence(gradient, group, dim); });
}

}  // namespace muster
