// Ranks that read other samples do so from the first step on, so the first forwards tell. Those of
// an evaluation have another loader than the training's, and count apart.
#include "muster/parallel/tensor/same_input.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/rows.h"
#include "muster/ddp/value_sample.h"

namespace muster {

namespace {

constexpr int64_t kComparedForwards = 2;

// Between processors that round differently, deep models may differ by more than a weight does.
constexpr double kRoundings = 0.01;

// What a rank says of a forward.
struct LayerSample {
  ValueSample input, part;
};

// A part of one value everywhere, such as zeros, has no sample: it is alike in whole layers too.
ValueSample sample_of_part(const Tensor& part) {
  const Tensor row = part.detach()[part.size(0) / 2];
  return sample_of(row - row[0]);
}

bool are_other_values(const ValueSample& one, const ValueSample& other) {
  const bool are_taken = one.is_taken() && other.is_taken();
  return are_taken && std::abs(one.sum - other.sum) > kRoundings * std::max(one.size, other.size);
}

}  // namespace

void SameInput::require(const char* layer,
                        const Tensor& input,
                        const Tensor& part,
                        ProcessGroup& group) {
  int64_t& compared = compared_[at::GradMode::is_enabled() ? 1 : 0];
  if (group.size() == 1 || compared == kComparedForwards || !input.is_cpu())
    return;
  ++compared;
  const NoGradGuard no_grad;
  const LayerSample mine{.input = sample_of(input.detach().contiguous()),
                         .part = sample_of_part(part)};
  const auto samples = all_gather_rows(group, mine);
  for (int rank = 1; rank < group.size(); ++rank) {
    if (samples.front().part.has_bits_of(samples[rank].part))
      warn_of_equal_parts(layer, rank, group);
    if (!are_other_values(samples.front().input, samples[rank].input))
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

void SameInput::warn_of_equal_parts(const char* layer, int rank, const ProcessGroup& group) {
  if (std::exchange(has_warned_, true) || group.rank() > 0)
    return;
  log_warning(layer,
              ": expected another part of the weight on every rank, got the same one on rank ",
              group.job_rank(rank),
              " as on rank ",
              group.job_rank(0),
              " (rank ",
              group.job_rank(),
              "); initialise the whole layer, before it is divided");
}

}  // namespace muster
