// The functions of which layers over a group of ranks are made. Each one's backward is another one's forward,
// so they can be differentiated as often as wanted.
//
//   forward of                backward of
//   copy_to_group      x      reduce_from_group       sum over the ranks
//   gather_from_group  join   scatter_to_group        own part
//   gather_sequence    join   reduce_scatter_sequence own part of the sum
//
// The first four stand where every rank holds the same values outside, and so computes the same loss. The
// last two stand where ranks hold different tokens outside: what a rank does with its own is in its own
// gradient alone, so that backward has to sum.
// All ranks must make the same calls in the same order, and the same backwards.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/comm/process_group.h"

namespace muster {

// x itself; backward sums the ranks' gradients. Collective: in backward.
at::Tensor copy_to_group(const at::Tensor& x, ProcessGroup group);
// The sum over the ranks; backward gives the gradient itself. Collective: yes.
at::Tensor reduce_from_group(const at::Tensor& x, ProcessGroup group);

// The ranks' parts joined along `dim`; backward gives this rank's part. Collective: yes. Shapes: the same on
// every rank.
at::Tensor gather_from_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);
// This rank's part along `dim`; backward joins the gradients' parts. Collective: in backward. Throws:
// invalid_argument for a size that the ranks do not divide.
at::Tensor scatter_to_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);

// The ranks' parts joined along `dim`; backward sums the gradients, and gives this rank's part. Collective:
// yes, in backward too. Shapes: the same on every rank.
at::Tensor gather_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim);
// This rank's part along `dim` of the sum; backward joins the gradients. Collective: yes, in backward too.
// Throws: as scatter_to_group.
at::Tensor reduce_scatter_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim);

}  // namespace muster
