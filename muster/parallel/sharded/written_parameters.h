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

  // What is in the parameters now is known to all ranks.
  void note();
  // Hashes of the values of those that were changed since note(), by writes to them or, `by_any`
  // and on a CPU, also by writes to `data()` and other views that have no version in common with
  // them. Blocking: for a GPU, if any was written to.
  Int64s hashes_of_changed(bool by_any) const;

 private:
  Tensor sample() const;
  bool is_written(size_t parameter) const;

  Tensors parameters_;
  Tensor flat_;
  Tensor places_;        // of the sampled values in it
  Int64s first_places_;  // of each parameter's in those, and the end
  Tensor noted_;
  Int64s versions_;
};

}  // namespace muster
