// The order in which tasks start and where: a pure state machine over tasks × pool, told of every end. The
// runner asks it what to start now, simulate.h does the same on a clock of its own. No I/O here, and no
// clock: times are seconds since the run began, given by the caller.
//
// Of the tasks that may start, the one with the highest priority comes first, then the one with the longest
// critical path (in tasks, along its dependents to the end of all), then the one that needs more GPUs, then
// the earlier one. A task takes the first of its alternatives that can be had now.
//
// For every task that waits devices are reserved: those that come after it get nothing that it could use
// there, be it of lower priority or of the same, and what it cannot use they get (backfill). They are
// reserved on one host for the first of its alternatives, where it lacks least; each time that as many tasks
// were backfilled elsewhere as it needs GPUs (one at least), on one more host, or for one more alternative.
// So a task waits for what ran when it could have started, and for those before it, and not for those after
// it. Of tasks with equal needs devices are reserved for the first. Nothing is reserved where other jobs are
// in the way.
//
// Tasks that wait and have equal needs are kept together, so that an event costs the number of different
// needs and not of tasks.
#pragma once

#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/tasks/schedule/pool.h"
#include "muster/tasks/schedule/reservations.h"
#include "muster/tasks/task.h"

namespace muster {

struct ScheduleOptions {
  int max_running = 0;            // tasks at a time, whatever there is room for; 0: no limit
  std::vector<size_t> done = {};  // by an earlier run
};

struct TaskStart {
  size_t task = 0;
  size_t alternative = 0;
  Allocation where = {};
};

// After a start that failed.
struct TaskRetry {
  std::optional<double> at = {};     // it starts again then; nothing: it has failed
  std::vector<size_t> skipped = {};  // tasks after it, which never start
};

// How a task stands in a run that goes on in another process.
struct TaskStanding {
  size_t task = 0;
  TaskState state = TaskState::waiting;
  std::optional<Allocation> where = {};  // of a running one; nothing: not of this pool
  double began = 0;
  int failures = 0;  // starts that failed in that run
  double failed_at = 0;
};

class Schedule {
 public:
  // `tasks` must outlive it. Throws: invalid_argument for a task after one that is not there, or after itself
  // by way of others; for needs that the pool could never meet.
  Schedule(const std::vector<Task>& tasks, Pool pool, ScheduleOptions options = {});

  // What starts now; it counts as running from here on.
  std::vector<TaskStart> start(double now);

  // The task's devices are free again. To be told before `done`, `failed` or `again`.
  void release(size_t task);

  // It is done: tasks after it may start.
  void done(size_t task);

  // Its start failed.
  TaskRetry failed(size_t task, double now);

  // Its start came to nothing (it was interrupted, or the devices were not to be had): it may start again.
  void again(size_t task);

  // Other jobs have so much of the GPU now (0: nothing any more), `by` says who.
  void set_leased(int host, int gpu, int units, const std::string& by) {
    pool_.set_leased(host, gpu, units, by);
  }

  // Other programs use so much of the GPU's memory now.
  void set_memory_in_use(int host, int gpu, uint64_t bytes) { pool_.set_memory_in_use(host, gpu, bytes); }

  // Whether a task that may start, and does not, asks for memory.
  bool waits_for_memory() const;

  // Whether one of these could have the GPU, and lacks nothing of it but memory.
  bool waits_for_memory_of(int host, int gpu) const;

  // The host was lost: nothing more starts there, until it is back.
  void set_aside(int host) { pool_.set_aside(host); }
  void bring_back(int host) { pool_.bring_back(host); }

  // From now on nothing starts.
  void drain() { draining_ = true; }

  // The tasks of a run that goes on, as its journal tells; for explain and --dry-run. Those that are not told
  // of wait. To be called once, before start.
  void restore(const std::vector<TaskStanding>& standings, double now);

  // True when nothing runs and nothing will.
  bool finished() const;

  // When a back-off ends; nothing: none does.
  std::optional<double> next_time() const;

  TaskState state(size_t task) const { return states_[task].state; }
  size_t count(TaskState state) const { return counts_[static_cast<size_t>(state)]; }
  int failures(size_t task) const { return states_[task].failures; }
  const Pool& pool() const { return pool_; }
  const Allocation& allocation(size_t task) const { return running_.at(task).where; }
  std::vector<size_t> running() const;
  std::optional<size_t> find(const std::string& name) const;

 private:
  friend class ScheduleExplainer;  // explain.cc

  struct State {
    TaskState state = TaskState::waiting;
    int missing = 0;        // tasks before it that are not done
    int failures = 0;       // starts that failed
    int critical_path = 0;  // tasks, to the end of all
    size_t kind = 0;        // in kinds_
  };
  struct Key {
    int priority;
    int critical_path;
    int gpus;
    size_t task;
    // The one that comes first is the smaller.
    bool operator<(const Key& other) const {
      if (priority != other.priority) return priority > other.priority;
      if (critical_path != other.critical_path) return critical_path > other.critical_path;
      if (gpus != other.gpus) return gpus > other.gpus;
      return task < other.task;
    }
    bool operator>(const Key& other) const { return other < *this; }
  };
  struct Kind {  // tasks with equal needs
    TaskWish wish;
    std::string on;
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  };
  struct Running {
    Allocation where;
    double began = 0;
  };
  void link_tasks();
  void make_kinds();
  void measure_critical_paths();
  Key key_of(size_t task) const;
  void set_state(size_t task, TaskState state);
  void make_ready(size_t task);
  double pause_of(size_t task) const;
  void wake(double now);
  bool has_slot() const;
  std::optional<TaskStart> place(const Kind& kind, size_t task) const;
  void begin(const TaskStart& start, double now);

  const std::vector<Task>& tasks_;
  Pool pool_;
  ScheduleOptions options_;
  std::unordered_map<std::string, size_t> numbers_;  // by name
  std::vector<State> states_;
  std::vector<size_t> first_after_;  // after_[first_after_[t]] … are the tasks after t
  std::vector<size_t> after_;
  std::vector<Kind> kinds_;
  std::set<std::pair<Key, size_t>> heads_;  // the first ready task of each kind
  std::map<size_t, Running> running_;
  std::multimap<double, size_t> back_off_;
  Reservations reservations_;  // of the last round
  size_t counts_[5] = {};
  bool draining_ = false;
};

}  // namespace muster
