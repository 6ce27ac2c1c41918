// Weights are watched until they differ, gradients in the first steps only.
#include "muster/ddp/replica_watch.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/ddp/live_reducers.h"

namespace muster {

namespace {

int64_t sampled_parameter(int64_t backwards, const TrainedParameters& trained) {
  return backwards % std::ssize(trained.tensors);
}

// Ranks that have counted other backwards have sampled another parameter.
std::optional<int64_t> rank_with_other_weights(const RankSteps& steps) {
  const RankStep& first = steps.front();
  for (const RankStep& other : steps) {
    if (other.backwards == first.backwards &&
        first.samples.weights.differs_from(other.samples.weights))
      return other.rank;
  }
  return std::nullopt;
}

}  // namespace

// A hook may mean the ranks to train apart.
ReplicaWatch::ReplicaWatch(const ProcessGroup& group, const DdpOptions& options)
    : group_(group),
      watches_weights_(options.check_steps && group.size() > 1 && !options.hook),
      watches_gradients_(options.check_steps && group.size() > 1),
      watches_modes_(options.check_steps && group.size() > 1),
      watches_outside_(options.check_steps && group.size() > 1) {}

void ReplicaWatch::look_outside() {
  if (watches_outside_)
    outside_.look(is_of_wrapped_model);
}

void ReplicaWatch::take_gradient(const Tensor& gradient) {
  if (watches_gradients_ && gradient.defined())
    gradient_ = sample_of(gradient);
}

StepSamples ReplicaWatch::take(const TrainedParameters& trained,
                               int64_t backwards,
                               bool is_training) {
  StepSamples samples{.mode = is_training ? ModelMode::training : ModelMode::evaluation,
                      .gradient = std::exchange(gradient_, {}),
                      .outside = outside_.sample()};
  if (watches_weights_)
    samples.weights = sample_of(trained.tensors[sampled_parameter(backwards, trained)]);
  return samples;
}

void ReplicaWatch::judge(const RankSteps& steps, const TrainedParameters& trained) {
  if (steps.empty())
    return;
  if (watches_weights_)
    judge_weights(steps, trained);
  if (watches_gradients_)
    judge_gradients(steps);
  if (watches_modes_)
    judge_modes(steps);
  if (watches_outside_)
    judge_outside(steps);
}

void ReplicaWatch::judge_weights(const RankSteps& steps, const TrainedParameters& trained) {
  const auto other = rank_with_other_weights(steps);
  if (!other)
    return;
  watches_weights_ = false;
  const int64_t backwards = steps.front().backwards;
  warn(cat("expected equal weights on every rank, got others on rank ",
           *other,
           " in '",
           trained.names[sampled_parameter(backwards - 1, trained)],
           "' at the end of backward ",
           backwards,
           " (rank ",
           group_.job_rank(),
           "); let every rank step alike, with one learning rate and no writes of its own, or load "
           "rank 0's weights everywhere; verify_every = 1 names the first difference, and "
           "check_steps = false is for ranks that are to train apart"));
}

void ReplicaWatch::judge_gradients(const RankSteps& steps) {
  std::vector<RankGradient> gradients;
  for (const RankStep& step : steps)
    gradients.push_back({.rank = step.rank, .sample = step.samples.gradient});
  if (const auto twins = same_samples_.judge(gradients))
    warn(same_samples_warning(*twins, group_.job_rank()));
  watches_gradients_ = !same_samples_.is_decided();
}

// Dropout and running statistics are those of the mode, so each rank would train another model.
void ReplicaWatch::judge_modes(const RankSteps& steps) {
  const auto other = std::ranges::find_if(
      steps, [&](const RankStep& step) { return step.samples.mode != steps.front().samples.mode; });
  if (other == steps.end())
    return;
  watches_modes_ = false;
  const auto text_of = [](const RankStep& step) {
    const bool trains = step.samples.mode == ModelMode::training;
    return cat(trains ? "training" : "evaluation", " on rank ", step.rank);
  };
  warn(cat("expected models in one mode on every rank, got ",
           text_of(steps.front()),
           " and ",
           text_of(*other),
           " at the end of backward ",
           steps.front().backwards,
           " (rank ",
           group_.job_rank(),
           "); call train() again after an evaluation on some ranks, or let evaluate() do it; "
           "check_steps = false is for ranks that are to train apart"));
}

void ReplicaWatch::judge_outside(const RankSteps& steps) {
  const auto samples = mapped(steps, [](const RankStep& step) { return step.samples.outside; });
  if (outside_.judge(samples))
    warn(cat(outside_leaves_warning(outside_, group_.job_rank()),
             "; check_steps = false is for ranks that are to train apart"));
}

void ReplicaWatch::warn(const std::string& text) const {
  if (group_.rank() == 0)
    log_warning("DistributedDataParallel: ", text);
}

}  // namespace muster
