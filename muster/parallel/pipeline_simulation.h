// What a pipeline schedule does before anything runs: whether it is valid, how long it takes, what it holds.
// Pure, as the schedules.
#pragma once

#include <string>
#include <vector>

#include "muster/parallel/pipeline_schedule.h"

namespace muster {

// Of one action of one stage, in any unit. `message`: from the end of an action until a neighbour has its
// result.
struct PipelineTimes {
  double forward = 1;
  double backward = 2;
  double input_grad = 1;
  double weight_grad = 1;
  double message = 0;
};

struct PipelineTimeline {
  double total = 0;                              // until the last rank ends
  std::vector<double> idle = {};                 // by rank, within `total`
  std::vector<std::vector<double>> starts = {};  // as PipelineSchedule::actions
  double bubble() const;                         // the most that a rank is idle
};

// Throws: invalid_argument naming the first rule that is broken: every stage does each micro-batch forward
// once and backward once (B, or I then W), on its rank; an action's inputs come before it; nobody waits for
// ever, where sends go on by themselves and receives block.
void check(const PipelineSchedule& schedule);

// When each action begins where every action starts as soon as its rank is free and its inputs are there.
// Throws: as check.
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineTimes& times = {});

// The most micro-batches (of all its stages) whose activations `rank` holds at once: from F to B, or to W.
int peak_held(const PipelineSchedule& schedule, int rank);

// A row a rank, a column a unit of time: "F0 F1 .. B0 B0". For times that are whole numbers.
std::string drawing(const PipelineSchedule& schedule, const PipelineTimes& times = {});

}  // namespace muster
