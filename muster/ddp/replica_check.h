// Whether the ranks' parameters are still the same, to the last bit: the sum of many bugs is that they are
// not (a rank that steps twice, an optimizer with other options, a write past the gradients).
#pragma once

#include <cstdint>

#include "muster/comm/process_group.h"
#include "muster/ddp/model_source.h"
#include "muster/ddp/options.h"

namespace muster {

// Of a tensor's bits, in the order of its elements: two tensors with other bits have others, but for chance
// (2^-64).
int64_t hash_of_bits(const at::Tensor& tensor);

class ReplicaCheck {
 public:
  ReplicaCheck(ProcessGroup group, const DdpOptions& options)
      : group_(std::move(group)), every_(options.verify_every), with_buffers_(options.verify_buffers) {}

  // Before a forward that reduces; `compares` is false on a rank whose model rests. Collective at every n-th.
  // Throws: failed_precondition, on every rank, with the first parameter that differs, and the ranks.
  void count(const ModelSource& source, bool compares = true);

 private:
  ProcessGroup group_;
  const int64_t every_;
  const bool with_buffers_;
  int64_t steps_ = 0;
};

}  // namespace muster
