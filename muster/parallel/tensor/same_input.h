// What a divided layer must get alike on every rank, its input, and what it must not: its part of
// the weight. With the samples, or the dropout masks, of each rank's own it would compute what no
// whole layer does; with the same part everywhere, as of an initialisation after the division with
// one seed, it would have the same outputs several times. Only for this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

class SameInput {
 public:
  // Compares a few values of the input and of the part over the ranks, in a layer's first forwards
  // that a backward may follow, and its first others; none on a GPU, since that would wait for it.
  // The first rank warns, once, of equal parts. Collective: in those. Throws: invalid_argument, on
  // every rank, naming `layer`, where inputs differ by more than roundings.
  void require(const char* layer, const Tensor& input, const Tensor& part, ProcessGroup& group);

 private:
  // Of group rank 0's part, and that of `rank`.
  void warn_of_equal_parts(const char* layer, int rank, const ProcessGroup& group);

  int64_t compared_[2] = {};  // without a backward to follow, and with one
  bool has_warned_ = false;
};

}  // namespace muster
