// Tensors in one piece of memory, and their mean over a group. For the pieces of this room that exchange
// whole models.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// The tensors in lots of one type and device, in order, each of about 32 MiB at most: what is sent at once.
std::vector<std::vector<at::Tensor>> lots_of(const std::vector<at::Tensor>& tensors);

// The elements of a lot, one after the other. Shapes: one dimension. A copy, also of a single tensor.
at::Tensor flat_of(const std::vector<at::Tensor>& lot);

// The reverse: the tensors take their elements.
void copy_from_flat(const at::Tensor& flat, const std::vector<at::Tensor>& lot);

// Every tensor becomes the sum over the ranks divided by their number. Collective: over the group, with the
// same tensors. Traffic: one all_reduce of each lot.
void average_over(ProcessGroup& group, const std::vector<at::Tensor>& tensors);

// Those that have a mean: of floating point or complex. The tensors themselves, whose memory may be replaced
// (torch::load, net->to).
std::vector<at::Tensor> averaged_ones(const std::vector<at::Tensor>& tensors);

}  // namespace muster
