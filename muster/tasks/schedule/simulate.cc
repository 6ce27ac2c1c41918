#include "muster/tasks/schedule/simulate.h"

#include <algorithm>

namespace muster {

SimulatedRun simulate(const std::vector<Task>& tasks, Pool pool, const SimulateOptions& options) {
  Schedule schedule(tasks, std::move(pool));
  SimulatedRun run;
  std::multimap<double, size_t> ends;
  for (double now = 0;;) {
    for (const TaskStart& start : schedule.start(now)) {
      const double end = now + (options.durations.empty() ? 1 : options.durations[start.task]);
      ends.emplace(end, start.task);
      run.starts.push_back({start.task, start.alternative, start.where, now, end});
    }
    if (ends.empty()) return run;
    now = run.makespan = ends.begin()->first;
    while (!ends.empty() && ends.begin()->first <= now) {
      schedule.done(ends.begin()->second);
      ends.erase(ends.begin());
    }
  }
}

}  // namespace muster
