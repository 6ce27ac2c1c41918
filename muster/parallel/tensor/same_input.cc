// Ranks that read other samples do so from the first step on, so the first forwards tell.
#include "muster/parallel/tensor/same_input.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/rows.h"
#include "muster/ddp/value_sample.h"

namespace muster {

namespace {

constexpr int64_t kComparedForwards = 2;

// Between processors that round differently, deep models may differ by more than a weight does.
constexpr double kRoundings = 0.01;

bool are_other_values(const ValueSample& one, const ValueSample& other) {
  const bool are_taken = one.is_taken() && other.is_taken();
  return are_taken && std::abs(one.sum - other.sum) > kRoundings * std::max(one.size, other.size);
}

}  // namespace

void SameInput::require(const char* layer, const Tensor& input, ProcessGroup& group) {
  if (group.size() == 1 || compared_ == kComparedForwards || !input.is_cpu() ||
      !at::GradMode::is_enabled())
    return;
  ++compared_;
  const NoGradGuard no_grad;
  const auto samples = all_gather_rows(group, sample_of(input.detach().contiguous()));
  for (int rank = 1; rank < group.size(); ++rank) {
    if (!are_other_values(samples.front(), samples[rank]))
      continue;
    throw invalid_argument(
        layer,
        ": expected the same input on every rank of its group, got other values on rank ",
        group.job_rank(rank),
        " than on rank ",
        group.job_rank(0),
        " (rank ",
        group.job_rank(),
        "); give these ranks the same samples, ctx.sampler(order, mesh.group(\"dp\")), and "
        "the same dropout masks, or set sequence_dim where each has its own tokens");
  }
}

}  // namespace muster
