// Gradients in the memory of the Reducer's buckets, as the program sees them: plain tensors without
// a copy. zero_grad() throws on views. A gradient that the program keeps over zero_grad() (PCGrad
// does, of each task) gets memory of its own before a backward writes to the buckets again.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"

namespace muster {

class BucketViews {
 public:
  // Begins with new buckets: what is kept of gradients in others stays as it is.
  void begin(size_t parameters) { lent_.assign(parameters, {}); }
  // After a backward: gives each parameter a plain tensor where its gradient is a view of a bucket.
  void lend(const Tensors& parameters);
  // Before the Reducer writes to the buckets in a backward.
  void take_back(const Tensors& parameters);

 private:
  // A parameter's: the bucket's memory in a storage that only these tensors have, and what is made
  // from them.
  Tensors lent_;
};

}  // namespace muster
