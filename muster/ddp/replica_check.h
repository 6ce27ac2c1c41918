// Checks whether the ranks' parameters are still equal bit for bit. Many bugs show as a difference
// (a rank that steps twice, an optimizer with other options, a write past the gradients).
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/model_source.h"
#include "muster/ddp/options.h"

namespace muster {

// A hash of a tensor's bits, in element order: different tensors have different hashes, except with
// probability 2^-64.
int64_t hash_of_bits(const Tensor& tensor);

class ReplicaCheck {
 public:
  ReplicaCheck(ProcessGroup group, const DdpOptions& options)
      : group_(std::move(group)),
        every_(options.verify_every),
        with_buffers_(options.verify_buffers) {}

  // Call it before a reduced forward; `compares` is false on a rank whose model rests. Collective:
  // at every n-th call. Throws: failed_precondition, on every rank, naming the first parameter that
  // differs, and the ranks.
  void count(const ModelSource& source, bool compares = true);

 private:
  ModelTensors items_of(const ModelSource& model) const;
  Tensor hashes_of_all(const ModelTensors& items, bool compares);
  [[noreturn]] void refuse(const std::string& what, const Ints& ranks) const;

  ProcessGroup group_;
  const int64_t every_;
  const bool with_buffers_;
  int64_t steps_ = 0;
};

}  // namespace muster
