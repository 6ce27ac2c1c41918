#include "muster/parallel/outside_watch.h"

#include <vector>

#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/comm/rows.h"
#include "muster/ddp/live_reducers.h"

namespace muster {

namespace {

constexpr int compared_backwards = 2 * OutsideLeaves::looked_backwards;

}  // namespace

void OutsideWatch::look() {
  leaves_.look(is_of_wrapped_model);
}

void OutsideWatch::look(const Tensors& leaves, const OutsideLeaves::IsKnown& is_known) {
  leaves_.look(leaves,
               [&](const Tensor& leaf) { return is_known(leaf) || is_of_wrapped_model(leaf); });
}

// All ranks come here equally often, so they end comparing together. A sample of a GPU's tensor
// would make the step wait for the GPU.
void OutsideWatch::compare(ProcessGroup& group, std::optional<ProcessGroup> replicas) {
  const bool is_alone = group.size() == 1 && (!replicas || replicas->size() == 1);
  if (is_alone || group.device().is_cuda() || compared_ == compared_backwards)
    return;
  ++compared_;
  const LeavesSample mine = leaves_.sample();
  std::vector<LeavesSample> samples = all_gather_rows(group, mine);
  if (replicas)
    append_all(samples, all_gather_rows(*replicas, mine));
  const bool have_come_apart = leaves_.judge(samples);
  if (have_come_apart && group.rank() == 0) {
    log_warning(subject_, ": ", outside_leaves_warning(leaves_, group.job_rank()));
  }
}

}  // namespace muster
