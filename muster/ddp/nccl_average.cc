// The Reducer leaves gradients as they are where a hook reduces them.
#include "muster/ddp/nccl_average.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "muster/comm/capabilities.h"

namespace muster {

bool averages_in_nccl(const ProcessGroup& group, const TrainedParameters& parameters) {
  const bool is_sparse = std::ranges::find(parameters.sparse, true) != parameters.sparse.end();
  const bool is_real =
      std::ranges::all_of(parameters.tensors, [](const at::Tensor& t) { return !t.is_complex(); });
  return group.device().is_cuda() && capabilities_of(group.backend()).on_gpus && !is_sparse &&
         is_real && std::has_single_bit<unsigned>(group.size());
}

NcclAverage::NcclAverage(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                         AverageDivisor divisor)
    : CppCommHookInterface(group), divisor_(std::move(divisor)) {}

// All ranks are inside of join() or none is, so all give NCCL the same operation.
c10::intrusive_ptr<c10::ivalue::Future> NcclAverage::runHook(c10d::GradBucket& bucket) {
  std::vector<at::Tensor> tensors{bucket.getBufferRef()};
  const int divisor = *divisor_;
  c10d::AllreduceOptions options;
  if (divisor == 0 && state_->getSize() > 1)
    options.reduceOp = c10d::ReduceOp::AVG;
  if (divisor > 1)
    tensors[0].mul_(1.0 / divisor);
  return state_->allreduce(tensors, options)->getFuture();
}

}  // namespace muster
