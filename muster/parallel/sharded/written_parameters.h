// Notices parameters in a flat buffer to which the program has written in place. Used by
// ShardedOptimizer, whose step would mix what this rank has written with what the others have.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/parallel/sharded/flat_layout.h"

namespace muster {

class WrittenParameters {
 public:
  WrittenParameters(Tensors parameters, const FlatLayout& layout, Tensor flat);

  // What is in the parameters now is known to all ranks. Blocking: no.
  void note();
  // Hashes of sampled values of those that were written to since note(), and changed by more than
  // roundings. Blocking: for a GPU, if any was written to.
  Int64s hashes_of_changed() const;

 private:
  Tensor sample() const;

  Tensors parameters_;
  Tensor flat_;
  Tensor places_;        // of the sampled values in it
  Int64s first_places_;  // of each parameter's in those, and the end
  Tensor noted_;
  Int64s versions_;
};

}  // namespace muster
