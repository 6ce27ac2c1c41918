#include "tests/tasks/schedule/simulate.h"

#include <algorithm>

namespace muster {

namespace {

class Simulation {
 public:
  Simulation(const std::vector<Task>& tasks, DevicePool pool, const SimulateOptions& options)
      : options_(options), schedule_(tasks, std::move(pool)), num_starts_(tasks.size()) {}

  SimulatedRun run() {
    for (;;) {
      for (TaskStart& start : schedule_.start(now_))
        begin(std::move(start));
      if (!ends_.empty())
        run_.makespan = ends_.begin()->first;
      const auto next = schedule_.next_time();
      if (ends_.empty() && !next)
        return std::move(run_);
      now_ = ends_.empty() ? *next
                           : std::min(ends_.begin()->first, next.value_or(ends_.begin()->first));
      for (; !ends_.empty() && ends_.begin()->first <= now_; ends_.erase(ends_.begin()))
        end(run_.starts[ends_.begin()->second]);
    }
  }

 private:
  void begin(TaskStart start) {
    const auto stops = options_.stops.find(start.task);
    const size_t number = num_starts_[start.task]++;
    const bool stopped = stops != options_.stops.end() && number < stops->second.size();
    const double lasts = stopped                      ? stops->second[number]
                         : options_.durations.empty() ? 1
                                                      : options_.durations[start.task];
    ends_.emplace(now_ + lasts, run_.starts.size());
    run_.starts.push_back(
        {start.task, stopped, start.alternative, std::move(start.where), now_, now_ + lasts});
  }

  void end(const SimulatedStart& start) {
    if (start.stopped) {
      schedule_.stopped(start.task, start.ended - start.began, now_);
    } else {
      schedule_.done(start.task);
    }
  }

  const SimulateOptions& options_;
  TaskSchedule schedule_;
  SimulatedRun run_;
  std::multimap<double, size_t> ends_;  // of the starts
  std::vector<size_t> num_starts_;      // of each task
  double now_ = 0;
};

}  // namespace

SimulatedRun simulate(const std::vector<Task>& tasks,
                      DevicePool pool,
                      const SimulateOptions& options) {
  return Simulation(tasks, std::move(pool), options).run();
}

}  // namespace muster
