// Tensors in one piece of memory, and their mean over a group. For the classes of this folder that
// exchange whole models.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

// Splits the tensors, in order, into lots of one type and device and at most about 32 MiB, to be
// sent at once.
TensorLists lots_of(const Tensors& tensors);

// The elements of a lot, concatenated. Shapes: one dimension. Always a copy, even of a single
// tensor.
Tensor flat_of(const Tensors& lot);

// The reverse: copies the elements back to the tensors.
void copy_from_flat(const Tensor& flat, const Tensors& lot);

// Replaces every tensor by the sum over the ranks divided by their number, with one all_reduce per
// lot. Collective: over the group, with the same tensors.
void average_over(ProcessGroup& group, const Tensors& tensors);

// The tensors that have a mean: floating point or complex. Returns the tensors themselves, whose
// memory may be replaced (torch::load, net->to).
Tensors averaged_ones(const Tensors& tensors);

}  // namespace muster
