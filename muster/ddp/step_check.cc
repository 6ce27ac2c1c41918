#include "muster/ddp/step_check.h"

#include <ATen/Functions.h>

#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

std::string steps_of_all(const at::Tensor& all) {
  std::vector<std::string> lines;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto skipped = all[rank][1].item<int64_t>();
    lines.push_back(cat("step ", all[rank][0].item<int64_t>(), " on rank ", rank,
                        skipped > 0 ? cat(" (", skipped, " without a backward)") : ""));
  }
  return join(lines, ", ");
}

}  // namespace

StepCheck::StepCheck(ProcessGroup group) : group_(std::move(group)) {}

StepCheck::Outputs StepCheck::begin_forward() {
  auto outputs = std::make_shared<char>();
  forwards_.push_back(outputs);
  return outputs;
}

void StepCheck::begin_backward() {
  if (group_.size() == 1) return;
  // Looked at as late as this: the variable that holds the last step's loss is often assigned after forward.
  const auto dropped = std::erase_if(forwards_, [](const auto& outputs) { return outputs.expired(); });
  skipped_ += static_cast<int64_t>(dropped);
  step_ += 1 + static_cast<int64_t>(dropped);
  const at::Tensor mine = at::empty({1, 2}, at::kLong);
  mine[0][0] = step_;
  mine[0][1] = skipped_;
  all_ = at::empty({group_.size(), 2}, at::kLong);
  work_ = group_.all_gather_async(all_, mine);
}

void StepCheck::end_backward() {
  forwards_.clear();
  if (!work_) return;
  std::exchange(work_, std::nullopt)->wait();
  const auto* values = all_.const_data_ptr<int64_t>();
  for (int64_t rank = 1; rank < all_.size(0); ++rank) {
    if (values[2 * rank] == values[0]) continue;
    throw Error(
        ErrorCode::failed_precondition,
        cat("DistributedDataParallel: expected every rank in the same step, got ", steps_of_all(all_),
            ", so gradients of different steps were averaged (rank ", group_.rank(),
            "); let all ranks skip a backward or none, and evaluate on module() or without gradients"));
  }
}

void StepCheck::reset() {
  work_.reset();
  forwards_.clear();
}

}  // namespace muster
