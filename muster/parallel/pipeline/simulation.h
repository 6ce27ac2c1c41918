// Analyses a pipeline schedule before anything runs: whether it is valid, how long it takes, how
// much it keeps. Pure, like the schedules.
#pragma once

#include <string>
#include <vector>

#include "muster/parallel/pipeline/schedule.h"

namespace muster {

// Times of one action of one stage, in any unit. `message`: from the end of an action until a
// neighbour has its result.
struct PipelineTimes {
  double forward = 1;
  double backward = 2;
  double input_grad = 1;
  double weight_grad = 1;
  double message = 0;
};

struct PipelineTimeline {
  double total = 0;                              // until the last rank finishes
  std::vector<double> idle = {};                 // by rank, within `total`
  std::vector<std::vector<double>> starts = {};  // as PipelineSchedule::actions
  double bubble() const;                         // the idle time of the most idle rank
};

// Throws: invalid_argument naming the first violated rule: every stage does one forward and one
// backward (B, or I then W) per micro-batch, on its own rank; an action's inputs come before it; no
// rank waits forever, where sends do not block and receives do.
void check(const PipelineSchedule& schedule);

// The start times, if every action starts as soon as its rank is free and its inputs are there.
// Throws: as check.
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineTimes& times = {});

// The most micro-batches (of all its stages) whose activations `rank` keeps at once: from F to B,
// or to W.
int peak_held(const PipelineSchedule& schedule, int rank);

// One row per rank, one column per unit of time: "F0 F1 .. B0 B0". For integer times.
std::string drawing(const PipelineSchedule& schedule, const PipelineTimes& times = {});

}  // namespace muster
