// Runs a schedule in thought: each rank does its actions in order, each as early as its inputs and
// the rank allow. Times follow, and whether the schedule ends at all: where no rank can go on, it
// is refused, with the actions at which the ranks wait.
#include "muster/parallel/pipeline/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using StepKind = PipelineAction::Kind;

[[noreturn]] void refuse_schedule(const PipelineSchedule& schedule,
                                  const std::string& expected,
                                  const std::string& got) {
  throw invalid_argument("pipeline schedule ",
                         schedule.name,
                         ": expected ",
                         expected,
                         ", got ",
                         got,
                         "; correct its actions");
}

double time_of(const PipelineAction& action, const PipelineTimes& times) {
  const std::pair<StepKind, double> of_kinds[] = {{StepKind::forward, times.forward},
                                                  {StepKind::backward, times.backward},
                                                  {StepKind::input_grad, times.input_grad},
                                                  {StepKind::weight_grad, times.weight_grad}};
  return lookup(of_kinds, action.kind, 0);
}

// The times at which what a stage makes of a micro-batch is there.
class Results {
 public:
  // "backward" stands for I too: what the stage before waits for.
  void put(const PipelineAction& action, double end) {
    const StepKind kind = action.kind == StepKind::input_grad ? StepKind::backward : action.kind;
    ends_[{kind, action.stage, action.micro_batch}] = end;
  }
  std::optional<double> get(StepKind kind, int stage, int micro_batch) const {
    const auto found = ends_.find({kind, stage, micro_batch});
    return found == ends_.end() ? std::nullopt : std::optional<double>(found->second);
  }

 private:
  std::map<std::tuple<StepKind, int, int>, double> ends_;
};

// Returns when all that `action` needs is there, or nothing while some of it is not.
std::optional<double> ready(const PipelineSchedule& schedule,
                            const PipelineAction& action,
                            const Results& results,
                            const PipelineTimes& times) {
  double at = 0;
  const auto needs = [&](StepKind kind, int stage) {
    const auto end = results.get(kind, stage, action.micro_batch);
    if (!end)
      return false;
    // Messages between stages of one rank take no time.
    const bool travels = schedule.rank_of(stage) != schedule.rank_of(action.stage);
    at = std::max(at, *end + (travels ? times.message : 0));
    return true;
  };
  // A forward needs the stage before, a weight's gradient its own input's, and a backward its own
  // forward and the stage behind.
  bool there = true;
  if (action.kind == StepKind::forward) {
    if (action.stage > 0)
      there = needs(StepKind::forward, action.stage - 1);
  } else if (action.kind == StepKind::weight_grad) {
    there = needs(StepKind::backward, action.stage);
  } else {
    there = needs(StepKind::forward, action.stage);
    if (there && action.stage + 1 < schedule.stages)
      there = needs(StepKind::backward, action.stage + 1);
  }
  return there ? std::optional<double>(at) : std::nullopt;
}

// It must come first, since the other checks index by these numbers.
void check_sizes(const PipelineSchedule& schedule) {
  const bool all_positive =
      schedule.ranks >= 1 && schedule.micro_batches >= 1 && schedule.stages >= 1;
  if (!all_positive || schedule.stages % schedule.ranks != 0 ||
      std::ssize(schedule.actions) != schedule.ranks) {
    refuse_schedule(schedule,
                    "as many stages on each rank, at least 1, and a list of actions a rank",
                    cat(plural(schedule.stages, "stage"),
                        ", ",
                        plural(schedule.ranks, "rank"),
                        ", ",
                        schedule.micro_batches,
                        " micro-batches and ",
                        schedule.actions.size(),
                        " lists"));
  }
}

bool exists_in(const PipelineSchedule& schedule, const PipelineAction& action) {
  const bool has_stage = action.stage >= 0 && action.stage < schedule.stages;
  const bool has_batch = action.micro_batch >= 0 && action.micro_batch < schedule.micro_batches;
  return has_stage && has_batch;
}

// Checks that each action occurs once, where it belongs. Whether the order works, simulate() finds.
void check_counts(const PipelineSchedule& schedule) {
  std::map<std::tuple<StepKind, int, int>, int> count;
  for (const int rank : indices_below(schedule.ranks)) {
    for (const PipelineAction& action : schedule.actions[rank]) {
      if (!exists_in(schedule, action) || schedule.rank_of(action.stage) != rank) {
        refuse_schedule(schedule,
                        "stages of the rank itself and micro-batches that there are",
                        cat(action.letter(),
                            action.micro_batch,
                            " of stage ",
                            action.stage,
                            " on rank ",
                            rank));
      }
      ++count[{action.kind, action.stage, action.micro_batch}];
    }
  }
  for (const int stage : indices_below(schedule.stages)) {
    for (const int i : indices_below(schedule.micro_batches)) {
      const int f = count[{StepKind::forward, stage, i}];
      const int b = count[{StepKind::backward, stage, i}];
      const int in = count[{StepKind::input_grad, stage, i}];
      const int w = count[{StepKind::weight_grad, stage, i}];
      if (f == 1 && b + in == 1 && in == w)
        continue;
      refuse_schedule(schedule,
                      "F once and B, or I and W, once",
                      cat(f,
                          " F, ",
                          b,
                          " B, ",
                          in,
                          " I and ",
                          w,
                          " W of micro-batch ",
                          i,
                          " at stage ",
                          stage,
                          " (rank ",
                          schedule.rank_of(stage),
                          ")"));
    }
  }
}

// Lists the action at which each rank waits, of those that have not ended.
std::string stuck_actions(const PipelineSchedule& schedule, const PipelineTimeline& timeline) {
  Strings waiting;
  for (const size_t rank : indices_of(schedule.actions)) {
    const size_t at = timeline.starts[rank].size();
    if (at < schedule.actions[rank].size())
      waiting.push_back(cat("rank ", rank, " at ", to_text(schedule.actions[rank][at], schedule)));
  }
  return join_first(waiting, ", ", 8);
}

}  // namespace

// It is the idle time of the rank that idles most.
double PipelineTimeline::bubble() const {
  return idle.empty() ? 0 : std::ranges::max(idle);
}

// The times do not matter here: an order that ends, ends with any times.
void check(const PipelineSchedule& schedule) {
  simulate(schedule);
}

PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineTimes& times) {
  check_sizes(schedule);
  check_counts(schedule);
  PipelineTimeline timeline;
  timeline.starts.resize(schedule.actions.size());
  Doubles free_at(schedule.actions.size(), 0);
  Doubles busy(schedule.actions.size(), 0);
  Results results;
  bool moved = true;  // in the last pass over the ranks
  size_t left = 0;    // actions that have not begun
  for (const auto& actions : schedule.actions)
    left += actions.size();
  // A pass runs each rank as far as its inputs allow. A pass in which nothing moves is a deadlock.
  while (left > 0 && moved) {
    moved = false;
    for (const size_t rank : indices_of(schedule.actions)) {
      auto& starts = timeline.starts[rank];
      while (starts.size() < schedule.actions[rank].size()) {
        const PipelineAction& action = schedule.actions[rank][starts.size()];
        const auto inputs = ready(schedule, action, results, times);
        if (!inputs)
          break;
        const double length = time_of(action, times);
        starts.push_back(std::max(*inputs, free_at[rank]));
        free_at[rank] = starts.back() + length;
        busy[rank] += length;
        results.put(action, free_at[rank]);
        moved = true;
        --left;
      }
    }
  }
  if (left > 0)
    refuse_schedule(schedule,
                    "an order in which all end",
                    cat("ranks that wait for ever: ", stuck_actions(schedule, timeline)));
  timeline.total = std::ranges::max(free_at);
  timeline.idle = mapped(busy, [&](const double time) { return timeline.total - time; });
  return timeline;
}

// It counts in the order of the rank's actions, whatever their times.
int peak_held(const PipelineSchedule& schedule, int rank) {
  int held = 0;
  int peak = 0;
  for (const PipelineAction& action : schedule.actions.at(rank)) {
    if (action.kind == StepKind::forward)
      peak = std::max(peak, ++held);
    if (action.kind == StepKind::backward || action.kind == StepKind::weight_grad)
      --held;
  }
  return peak;
}

// A column is one unit of time, so whole numbers are drawn best.
std::string drawing(const PipelineSchedule& schedule, const PipelineTimes& times) {
  const PipelineTimeline timeline = simulate(schedule, times);
  size_t width = 1;
  for (const auto& actions : schedule.actions)
    for (const auto& action : actions)
      width = std::max(width, to_text(action, schedule).size());
  const auto padded = [](std::string text, size_t to) {
    return text.append(to - text.size(), ' ');
  };
  const size_t label = cat("rank ", schedule.ranks - 1).size();
  std::string text;
  for (const size_t rank : indices_of(schedule.actions)) {
    Strings cells(std::llround(timeline.total), ".");
    for (const size_t i : indices_of(schedule.actions[rank])) {
      const PipelineAction& action = schedule.actions[rank][i];
      const double end = timeline.starts[rank][i] + time_of(action, times);
      for (auto at = std::llround(timeline.starts[rank][i]); at < std::llround(end); ++at)
        cells[at] = to_text(action, schedule);
    }
    text += padded(cat("rank ", rank), label);
    for (const std::string& cell : cells)
      text += cat(" ", padded(cell, width));
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

}  // namespace muster
