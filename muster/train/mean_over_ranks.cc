// The loss is copied first: the caller's own stays this rank's.
#include "muster/train/mean_over_ranks.h"

namespace muster {

at::Tensor mean_over_ranks(const at::Tensor& loss, ProcessGroup& group) {
  at::Tensor mean = loss.detach().clone();
  group.all_reduce(mean, ReduceOp::avg);
  return mean;
}

}  // namespace muster
