#include "muster/parallel/sharded/outside_watch.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/ddp/live_reducers.h"
#include "muster/optim/parts.h"

namespace muster {

namespace {

static_assert(std::is_trivially_copyable_v<LeavesSample>);
constexpr int64_t row_bytes = sizeof(LeavesSample);
constexpr int compared_backwards = 2 * OutsideLeaves::looked_backwards;

std::vector<LeavesSample> samples_of_all(ProcessGroup& group, const LeavesSample& mine) {
  const at::Tensor row = at::empty({1, row_bytes}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, row_bytes);
  const at::Tensor all = at::empty({group.size(), row_bytes}, at::kByte);
  group.all_gather(all, row);
  std::vector<LeavesSample> samples(all.size(0));
  std::memcpy(samples.data(), all.const_data_ptr(), all.nbytes());
  return samples;
}

}  // namespace

void OutsideWatch::look() {
  leaves_.look([](const at::Tensor& leaf) {
    return optim::has_divided_gradient(leaf) || LiveReducer::any_has(leaf);
  });
}

void OutsideWatch::compare(ProcessGroup& group) {
  if (group.size() == 1 || group.device().is_cuda() || compared_ == compared_backwards)
    return;
  ++compared_;
  const bool have_come_apart = leaves_.judge(samples_of_all(group, leaves_.sample()));
  if (have_come_apart && group.rank() == 0) {
    log(LogLevel::warn, cat("fully sharded: ", outside_leaves_warning(leaves_, group.job_rank())));
  }
}

}  // namespace muster
