// The schedules: what each rank does, in which order. `ahead` is the number of forwards that a rank
// runs before its first backward; the earlier the rank, the more, since its backwards come back
// later. From then on forwards and backwards alternate, which bounds the activations that are held.
// Turns are counted by the backwards, so those of the forwards ahead are below 0.
#include "muster/parallel/pipeline/schedule.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using ActionKind = PipelineAction::Kind;

// Checks the numbers, and gives a schedule in which no rank does anything.
PipelineSchedule empty_schedule(const std::string& name,
                                int ranks,
                                int micro_batches,
                                int stages_per_rank) {
  if (ranks < 1 || micro_batches < 1 || stages_per_rank < 1) {
    throw invalid_argument("pipeline schedule ",
                           name,
                           ": expected numbers of at least 1, got ",
                           plural(ranks, "rank"),
                           ", ",
                           micro_batches,
                           " micro-batches and ",
                           plural(stages_per_rank, "stage"),
                           " a rank");
  }
  PipelineSchedule schedule{.name = name,
                            .ranks = ranks,
                            .stages = ranks * stages_per_rank,
                            .micro_batches = micro_batches};
  schedule.actions.resize(ranks);
  return schedule;
}

// The i-th forward of a rank with several stages: micro-batches go through in rounds of `ranks`,
// and a round visits the rank's stages in order.
PipelineAction interleaved_forward(const PipelineSchedule& schedule, int rank, int i) {
  const int round = schedule.ranks * schedule.stages_per_rank();
  const int chunk = i % round / schedule.ranks;
  return {ActionKind::forward,
          chunk * schedule.ranks + rank,
          i / round * schedule.ranks + i % schedule.ranks};
}

// The i-th backward: in the forwards' order of micro-batches, with the stages in the opposite
// order.
PipelineAction interleaved_backward(const PipelineSchedule& schedule, int rank, int i) {
  const PipelineAction forward = interleaved_forward(schedule, rank, i);
  const int chunk = schedule.stages_per_rank() - 1 - forward.stage / schedule.ranks;
  return {ActionKind::backward, chunk * schedule.ranks + rank, forward.micro_batch};
}

}  // namespace

// Every rank runs all forwards and then all backwards, so it holds all micro-batches at once.
PipelineSchedule gpipe(int ranks, int micro_batches) {
  PipelineSchedule schedule = empty_schedule("gpipe", ranks, micro_batches, 1);
  for (const int rank : indices_below(ranks)) {
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward}) {
      for (const int i : indices_below(micro_batches))
        schedule.actions[rank].push_back({kind, rank, i});
    }
  }
  return schedule;
}

// A rank holds at most one micro-batch more than the forwards that it runs ahead.
PipelineSchedule one_f_one_b(int ranks, int micro_batches) {
  PipelineSchedule schedule = empty_schedule("one_f_one_b", ranks, micro_batches, 1);
  for (const int rank : indices_below(ranks)) {
    auto& actions = schedule.actions[rank];
    const int ahead = std::min(ranks - 1 - rank, micro_batches);
    for (int i = -ahead; i < micro_batches; ++i) {
      if (i + ahead < micro_batches)
        actions.push_back({ActionKind::forward, rank, i + ahead});
      if (i >= 0)
        actions.push_back({ActionKind::backward, rank, i});
    }
  }
  return schedule;
}

// The forwards ahead fill all stages but the last of this rank, and twice the way to the last rank.
PipelineSchedule interleaved(int ranks, int micro_batches, int stages_per_rank) {
  PipelineSchedule schedule = empty_schedule("interleaved", ranks, micro_batches, stages_per_rank);
  if (micro_batches % ranks != 0) {
    throw invalid_argument("pipeline schedule interleaved: expected micro-batches that ",
                           plural(ranks, "rank"),
                           " divide, got ",
                           micro_batches,
                           "; take ",
                           (micro_batches / ranks + 1) * ranks);
  }
  const int all = micro_batches * stages_per_rank;
  for (const int rank : indices_below(ranks)) {
    auto& actions = schedule.actions[rank];
    const int ahead = std::min((stages_per_rank - 1) * ranks + 2 * (ranks - 1 - rank), all);
    for (int i = -ahead; i < all; ++i) {
      if (i + ahead < all)
        actions.push_back(interleaved_forward(schedule, rank, i + ahead));
      if (i >= 0)
        actions.push_back(interleaved_backward(schedule, rank, i));
    }
  }
  return schedule;
}

// Backwards are divided: the input's gradient goes on at once, and those of the weights fill gaps.
PipelineSchedule zero_bubble(int ranks, int micro_batches) {
  PipelineSchedule schedule = empty_schedule("zero_bubble", ranks, micro_batches, 1);
  for (const int rank : indices_below(ranks)) {
    auto& actions = schedule.actions[rank];
    const int ahead = std::min(ranks - 1 - rank, micro_batches);
    // A rank that runs ahead by fewer forwards may put off as many weights' gradients.
    const int late = rank;
    for (int i = -ahead; i < micro_batches + late; ++i) {
      if (i + ahead < micro_batches)
        actions.push_back({ActionKind::forward, rank, i + ahead});
      if (i >= 0 && i < micro_batches)
        actions.push_back({ActionKind::input_grad, rank, i});
      if (i >= late)
        actions.push_back({ActionKind::weight_grad, rank, i - late});
    }
  }
  return schedule;
}

// A stage is named only where a rank has several.
std::string to_text(const PipelineAction& action, const PipelineSchedule& schedule) {
  const std::string text = cat(action.letter(), action.micro_batch);
  return schedule.stages == schedule.ranks ? text : cat(text, "/", action.stage);
}

// Ranks compare these texts, so a text names all actions.
std::string to_text(const PipelineSchedule& schedule) {
  std::string text = cat(schedule.name,
                         ": ",
                         plural(schedule.ranks, "rank"),
                         ", ",
                         plural(schedule.stages, "stage"),
                         ", ",
                         schedule.micro_batches,
                         " micro-batches\n");
  for (const size_t rank : indices_of(schedule.actions)) {
    text += cat("rank ", rank, ":");
    for (const PipelineAction& action : schedule.actions[rank])
      text += cat(" ", to_text(action, schedule));
    text += "\n";
  }
  return text;
}

}  // namespace muster
