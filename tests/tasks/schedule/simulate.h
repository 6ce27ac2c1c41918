// A schedule on a clock of its own: what a set of tasks would come to if each took as long as is
// told, which the schedule does not know. For its tests. No processes, no waiting.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "muster/tasks/schedule/schedule.h"

namespace muster {

struct SimulatedStart {
  size_t task = 0;
  bool stopped = false;  // it ended with exit code 75
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
  // By task: how long each of its first starts lasts, which stop with exit code 75.
  std::map<size_t, std::vector<double>> stops = {};
};

// Throws: as TaskSchedule.
SimulatedRun simulate(const std::vector<Task>& tasks,
                      DevicePool pool,
                      const SimulateOptions& options = {});

}  // namespace muster
