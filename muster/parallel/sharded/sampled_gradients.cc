#include "muster/parallel/sharded/sampled_gradients.h"

#include <ATen/Functions.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

static_assert(std::is_trivially_copyable_v<RankGradient>);
constexpr int64_t row_bytes = sizeof(RankGradient);

at::Tensor row_of(const RankGradient& gradient) {
  at::Tensor row = at::empty({1, row_bytes}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &gradient, row_bytes);
  return row;
}

std::vector<RankGradient> gradients_of(const at::Tensor& rows) {
  std::vector<RankGradient> gradients(rows.size(0));
  std::memcpy(gradients.data(), rows.const_data_ptr(), rows.nbytes());
  return gradients;
}

}  // namespace

void SampledGradients::start(const at::Tensor& gradient) {
  if (group_.size() == 1 || !gradient.is_cpu() || started_ == SameSamples::judged_backwards)
    return;
  ++started_;
  all_ = at::empty({group_.size(), row_bytes}, at::kByte);
  work_ = group_.all_gather_async(
      all_, row_of({.rank = group_.job_rank(), .sample = sample_of(gradient)}));
}

std::optional<Twins> SampledGradients::finish() {
  if (!work_)
    return std::nullopt;
  work_->wait();
  const std::vector<RankGradient> gradients = gradients_of(all_);
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
  log(LogLevel::warn, cat(subject_, ": ", same_samples_warning(*twins, group.job_rank())));
}

}  // namespace muster
