// The loss is copied first: the caller's own stays this rank's.
#include "muster/train/mean_over_ranks.h"
#include "muster/base/tensors.h"

namespace muster {

Tensor mean_over_ranks(const Tensor& loss, ProcessGroup& group) {
  Tensor mean = loss.detach().clone();
  group.all_reduce(mean, ReduceOp::avg);
  return mean;
}

}  // namespace muster
