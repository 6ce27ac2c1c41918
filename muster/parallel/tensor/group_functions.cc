// The functions of tensor parallelism, in pairs: the backward of each is its partner, so second
// derivatives work too. Forward and backward of a pair may be called in either order.
#include "muster/parallel/tensor/group_functions.h"

#include "muster/base/tensors.h"
#include "muster/parallel/tensor/group_collectives.h"

namespace muster {

namespace {

// Both work along `dim`, counted from 0.
template <class Forward>
Tensor along(int64_t dim,
             const Tensor& x,
             ProcessGroup& group,
             const Forward& forward,
             Tensor (*backward)(const Tensor&, ProcessGroup, int64_t)) {
  return with_backward(
      x,
      [&](const Tensor& mine) { return forward(mine, group, dim); },
      [=](const Tensor& gradient) { return backward(gradient, group, dim); });
}

}  // namespace

// The forward exchanges nothing; the ranks meet in the backward.
Tensor copy_to_group(const Tensor& x, ProcessGroup group) {
  return with_backward(
      x,
      [](const Tensor& same) { return same; },
      [group](const Tensor& gradient) { return reduce_from_group(gradient, group); });
}

// The ranks meet in the forward; the backward exchanges nothing.
Tensor reduce_from_group(const Tensor& x, ProcessGroup group) {
  return with_backward(
      x,
      [&](const Tensor& summand) { return summed(summand, group); },
      [group](const Tensor& gradient) { return copy_to_group(gradient, group); });
}

// Every rank has the same gradient of the whole, so the backward takes this rank's part of it.
Tensor gather_from_group(const Tensor& x, ProcessGroup group, int64_t dim) {
  dim = existing_dim("gather_from_group", x, group, dim);
  return along(dim, x, group, gathered, scatter_to_group);
}

Tensor scatter_to_group(const Tensor& x, ProcessGroup group, int64_t dim) {
  dim = divisible_dim("scatter_to_group", x, group, dim);
  return along(dim, x, group, own_part, gather_from_group);
}

// The ranks use the whole differently, so their gradients are summed before they are divided.
Tensor gather_sequence(const Tensor& x, ProcessGroup group, int64_t dim) {
  dim = existing_dim("gather_sequence", x, group, dim);
  return along(dim, x, group, gathered, reduce_scatter_sequence);
}

// Each rank keeps the sum of its own part.
Tensor reduce_scatter_sequence(const Tensor& x, ProcessGroup group, int64_t dim) {
  dim = divisible_dim("reduce_scatter_sequence", x, group, dim);
  return along(dim, x, group, sum_scattered, gather_sequence);
}

}  // namespace muster
