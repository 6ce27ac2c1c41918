// Whether each rank steps on the same gradients, where every rank has them whole and steps a part.
// Used by ShardedOptimizer without `gradients` (ZeRO-1), which cannot see who averages them.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"

namespace muster {

class AveragedGradients {
 public:
  // Compares samples of the parameters' gradients in the first steps, on GPUs in the first alone,
  // since that waits for them. Collective: yes, in these. Blocking: then. Throws:
  // failed_precondition, on every rank, for gradients that differ.
  void require(const Tensors& parameters, ProcessGroup& group);

 private:
  int compared_ = 0;  // it counts alike on all ranks
};

}  // namespace muster
