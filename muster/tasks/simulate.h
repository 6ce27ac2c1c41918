// A schedule on a clock of its own: what a set of tasks would come to if each took as long as is told. For
// `muster tasks --dry-run`, the tests of the schedule and its benchmark. No processes, no waiting.
#pragma once

#include <string>
#include <vector>

#include "muster/tasks/schedule.h"

namespace muster {

struct SimulatedStart {
  size_t task = 0;
  size_t alternative = 0;
  Allocation where = {};
  double began = 0;
  double ended = 0;
};

struct SimulatedRun {
  double makespan = 0;
  std::vector<SimulatedStart> starts = {};  // in order
};

struct SimulateOptions {
  std::vector<double> durations = {};  // of each task; empty: one second each
  bool told = true;                    // the schedule knows them
  int max_running = 0;
};

// Throws: as Schedule.
SimulatedRun simulate(const std::vector<Task>& tasks, Pool pool, const SimulateOptions& options = {});

}  // namespace muster
