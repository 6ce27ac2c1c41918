// The input that a divided layer must get alike on every rank: with the samples, or the dropout
// masks, of each rank's own it would compute what no whole layer does. Only for this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

class SameInput {
 public:
  // Compares a few values of the input over the ranks, in a layer's first forwards that a backward
  // may follow; none of an input on a GPU, since that would wait for it. Collective: in those.
  // Throws: invalid_argument, on every rank, naming `layer`, where they differ by more than
  // roundings.
  void require(const char* layer, const Tensor& input, ProcessGroup& group);

 private:
  int64_t compared_ = 0;
};

}  // namespace muster
