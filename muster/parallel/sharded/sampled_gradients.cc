#include "muster/parallel/sharded/sampled_gradients.h"

#include <vector>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/rows.h"

namespace muster {

void SampledGradients::start(const Tensor& gradient) {
  if (group_.size() == 1 || !gradient.is_cpu() || started_ == SameSamples::judged_backwards)
    return;
  ++started_;
  all_ = empty_rows<RankGradient>(group_);
  work_ = group_.all_gather_async(
      all_, tensor_of_row(RankGradient{.rank = group_.job_rank(), .sample = sample_of(gradient)}));
}

std::optional<Twins> SampledGradients::finish() {
  if (!work_)
    return std::nullopt;
  work_->wait();
  const std::vector<RankGradient> gradients = rows_of<RankGradient>(all_);
  drop();
  return same_samples_.judge(gradients);
}

void SampledGradients::drop() {
  work_.reset();
  all_.reset();
}

void SameSamplesWarning::say(const std::optional<Twins>& twins, const ProcessGroup& group) {
  if (!twins || group.rank() != 0 || std::exchange(said_, true))
    return;
  log_warning(subject_, ": ", same_samples_warning(*twins, group.job_rank()));
}

}  // namespace muster
