// The building blocks of layers that span a group of ranks. The backward of each is the forward of
// another, so they can be differentiated any number of times.
//
//   forward of                backward of
//   copy_to_group      x      reduce_from_group       sum over the ranks
//   gather_from_group  join   scatter_to_group        own part
//   gather_sequence    join   reduce_scatter_sequence own part of the sum
//
// Use the first four where every rank has the same values outside, and so computes the same loss.
// Use the last two where ranks have different tokens outside: a rank's gradient then covers only
// its own tokens, so backward must sum. All ranks must make the same calls, and the same backwards,
// in the same order.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "muster/comm/process_group.h"

namespace muster {

// x itself; backward sums the ranks' gradients. Collective: in backward.
at::Tensor copy_to_group(const at::Tensor& x, ProcessGroup group);
// The sum over the ranks; backward returns the gradient unchanged. Collective: yes.
at::Tensor reduce_from_group(const at::Tensor& x, ProcessGroup group);

// The ranks' parts joined along `dim`; backward returns this rank's part. Collective: yes. Shapes:
// the same on every rank.
at::Tensor gather_from_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);
// This rank's part along `dim`; backward joins the parts of the gradient. Collective: in backward.
// Throws: invalid_argument for a size that is not a multiple of the number of ranks.
at::Tensor scatter_to_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);

// The ranks' parts joined along `dim`; backward sums the gradients and returns this rank's part.
// Collective: yes, in backward too. Shapes: the same on every rank.
at::Tensor gather_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim);
// This rank's part, along `dim`, of the sum; backward joins the gradients. Collective: yes, in
// backward too. Throws: as scatter_to_group.
at::Tensor reduce_scatter_sequence(const at::Tensor& x, ProcessGroup group, int64_t dim);

}  // namespace muster
