// Whether a trained tensor that no sharded model and no stage has comes to differ between ranks.
// The ranks exchange samples at the end of the first backwards. On CPUs only. Used by
// FullyShardedSet, ShardedOptimizer and a pipeline's Replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/outside_leaves.h"

namespace muster {

class OutsideWatch {
 public:
  // `subject` begins the warning.
  explicit OutsideWatch(const char* subject) : subject_(subject) {}

  // A backward that is to be reduced has begun. Call it from one of its hooks.
  void look();
  // The same for backwards that have ended, whose leaves these are, each once. `is_known` says
  // which are the caller's own.
  void look(const Tensors& leaves, const OutsideLeaves::IsKnown& is_known);
  // Whether look() has something to see yet.
  bool is_looking() const { return leaves_.is_looking(); }
  // The backward has ended. The first rank warns, once. `replicas` are ranks of other groups that
  // train the same. Collective: yes, in the first backwards. Blocking: then.
  void compare(ProcessGroup& group, std::optional<ProcessGroup> replicas = {});

 private:
  const char* subject_;
  OutsideLeaves leaves_;
  int compared_ = 0;  // it counts alike on all ranks
};

}  // namespace muster
