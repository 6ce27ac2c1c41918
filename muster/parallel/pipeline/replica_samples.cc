// The weights are those before the optimizer's step, so what another step has made different is
// seen at the end of the next.
#include "muster/parallel/pipeline/replica_samples.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/comm/rows.h"

namespace muster {

void ReplicaSamples::take_gradients(const Tensors& parameters) {
  if (same_samples_.is_decided())
    return;
  for (const Tensor& parameter : parameters)
    if (parameter.dim() > 1 && parameter.grad().defined())
      gradient_ = sample_of(parameter.grad());
}

void ReplicaSamples::compare(const Tensors& parameters, ProcessGroup& group) {
  if (group.size() == 1 || group.device().is_cuda() || parameters.empty())
    return;
  const Row mine{.gradient = {.rank = group.job_rank(), .sample = std::exchange(gradient_, {})},
                 .weights = sample_of(parameters[steps_ % std::ssize(parameters)])};
  ++steps_;
  const auto rows = all_gather_rows(group, mine);
  judge_gradients(rows, group);
  if (watches_weights_)
    judge_weights(rows, group);
}

void ReplicaSamples::judge_gradients(const std::vector<Row>& rows, const ProcessGroup& group) {
  const auto twins = same_samples_.judge(mapped(rows, &Row::gradient));
  if (!twins || group.rank() > 0)
    return;
  log_warning(
      "pipeline: expected each replica to train on samples of its own, got the same "
      "gradients on ranks ",
      twins->first,
      " and ",
      twins->second,
      " in the first ",
      SameSamples::judged_backwards,
      " steps (rank ",
      group.job_rank(),
      "); give each replica its part of the data: ctx.sampler(order, "
      "mesh.group(\"dp\"))");
}

void ReplicaSamples::judge_weights(const std::vector<Row>& rows, const ProcessGroup& group) {
  const auto other = std::ranges::find_if(
      rows, [&](const Row& row) { return rows.front().weights.differs_from(row.weights); });
  if (other == rows.end())
    return;
  watches_weights_ = false;
  if (group.rank() > 0)
    return;
  log_warning("pipeline: expected equal weights in every replica, got others on rank ",
              other->gradient.rank,
              " at the end of step ",
              steps_,
              " (rank ",
              group.job_rank(),
              "); let every replica step alike, with one learning rate and no writes of its own");
}

}  // namespace muster
