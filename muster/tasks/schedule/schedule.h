// Decides the order in which tasks start, and where: a pure state machine over tasks × pool, told
// of every end. The runner asks it what to start now. No I/O and no clock here: times are seconds
// since the start of the run, given by the caller.
//
// Among the tasks that may start, the first is the one with the highest priority, then with the
// longest critical path (in tasks, along its dependents to the end), then the one that needs more
// GPUs, then the earlier one. A task takes the first of its alternatives that is available now.
//
// Devices are reserved for every waiting task. Later tasks, of lower or equal priority, get nothing
// there that the waiting task could use; they get only what it cannot use (backfill). A reservation
// starts on one host, the one where least is missing, for the task's first alternative. It grows by
// one more host or one more alternative each time that as many tasks as it needs GPUs (at least
// one) were backfilled elsewhere. So a task waits for tasks that were running when it became ready,
// and for earlier ones, but not for later ones. Among tasks with equal needs only the first has a
// reservation. Nothing is reserved where other jobs are in the way.
//
// Waiting tasks with equal needs are kept together, so that the cost of an event depends on the
// number of different needs, not of tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/tasks/schedule/device_pool.h"
#include "muster/tasks/schedule/reservations.h"
#include "muster/tasks/task.h"

namespace muster {

struct ScheduleOptions {
  int max_running = 0;  // tasks at a time, even if there is room for more; 0: no limit
  Indices done{};       // by an earlier run
};

struct TaskStart {
  size_t task = 0;
  size_t alternative = 0;
  Allocation where{};
};

using TaskStarts = std::vector<TaskStart>;

// The sequel of a failed start.
struct TaskRetry {
  std::optional<double> at{};  // time of the next start; nothing: the task has failed
  Indices skipped{};           // tasks that come after it and will never start
};

// The state of a task in a run that another process continues.
struct TaskStanding {
  size_t task = 0;
  TaskState state = TaskState::waiting;
  std::optional<Allocation> where{};  // of a running task; nothing: not in this pool
  double began = 0;
  int failures = 0;  // failed starts in that run
  double failed_at = 0;
  int stops = 0;  // starts that stopped soon after they began, one after the other
  double stopped_at = 0;
};

class TaskSchedule {
 public:
  // `tasks` must outlive it. Throws: invalid_argument for a task that comes after an unknown task
  // or, through others, after itself; for needs that the pool could never meet.
  TaskSchedule(const Tasks& tasks, DevicePool pool, ScheduleOptions options = {});

  // The tasks to start now; they count as running from here on.
  TaskStarts start(double now);

  // Frees the task's devices. Call it before `done`, `failed`, `stopped` or `again`.
  void release(size_t task);

  // The task has succeeded: tasks that come after it may start.
  void done(size_t task);

  // The task's start has failed.
  TaskRetry failed(size_t task, double now);

  // The task's start lasted `lasted` seconds and stopped with exit code 75, which is no failure.
  // Returns the time of its next start.
  double stopped(size_t task, double lasted, double now);

  // The start found no processes, descriptors or memory, and did not count: the task starts again
  // after a pause as in `stopped`, which end_pause_of_starved may end before.
  void starved(size_t task, double now);

  // A task has ended, and has given back what another may have lacked. One that has starved so
  // often that its pause grows no more keeps that: its tries cost others their room.
  void end_pause_of_starved();

  // The start did not count (it was interrupted, or the devices were unavailable): the task may
  // start again.
  void again(size_t task);

  // Other jobs now hold `units` of the GPU (0: nothing); `by` describes them.
  void set_leased(int host, int gpu, int units, const std::string& by) {
    pool_.set_leased(host, gpu, units, by);
  }

  // Other programs now use this much of the GPU's memory.
  void set_memory_in_use(int host, int gpu, uint64_t bytes) {
    pool_.set_memory_in_use(host, gpu, bytes);
  }

  // Whether a task that is ready, but cannot start, asks for GPUs.
  bool waits_for_gpus() const;

  // Whether such a task asks for memory.
  bool waits_for_memory() const;

  // Whether such a task could have the GPU if more of its memory were free.
  bool waits_for_memory_of(int host, int gpu) const;

  // The host was lost: nothing starts there until bring_back.
  void set_aside(int host) { pool_.set_aside(host); }
  void bring_back(int host) { pool_.bring_back(host); }

  // Starts nothing from now on.
  void drain() { draining_ = true; }

  // Sets the tasks' states in a continued run, from its journal; for explain and --dry-run. Tasks
  // not listed are waiting. Call it once, before start.
  void restore(const std::vector<TaskStanding>& standings, double now);

  // Whether nothing runs and nothing will start.
  bool finished() const;

  // The end of the next back-off; nothing: there is none.
  std::optional<double> next_time() const;

  TaskState state(size_t task) const { return states_[task].state; }
  size_t count(TaskState state) const { return counts_[index_of(state)]; }
  int failures(size_t task) const { return states_[task].failures; }
  const DevicePool& pool() const { return pool_; }
  const Allocation& allocation(size_t task) const { return running_.at(task).where; }
  size_t num_running() const { return running_.size(); }  // tasks that have devices
  std::optional<size_t> find(const std::string& name) const;

 private:
  friend class ScheduleExplainer;  // explain.cc

  struct State {
    TaskState state = TaskState::waiting;
    int missing = 0;        // unfinished tasks that it comes after
    int failures = 0;       // failed starts
    int stops = 0;          // starts that stopped soon, since the last that did not
    int critical_path = 0;  // in tasks, to the end
    size_t kind = 0;        // in kinds_
  };
  struct Key {
    int priority;
    int critical_path;
    int gpus;
    size_t task;
    // Earlier tasks are smaller.
    bool operator<(const Key& other) const {
      return std::tuple(other.priority, other.critical_path, other.gpus, task) <
             std::tuple(priority, critical_path, gpus, other.task);
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

  static size_t index_of(TaskState state) { return static_cast<size_t>(state); }

  void link_tasks();
  void measure_critical_paths();
  Indices in_order_of_after() const;
  void make_kinds();
  void check_possible(const Kind& kind, const Task& task) const;
  const Kind& kind_of(size_t task) const { return kinds_[states_[task].kind]; }
  // The tasks that come right after this one.
  std::span<const size_t> followers(size_t task) const;
  Key key_of(size_t task) const;
  void set_state(size_t task, TaskState state);
  void make_ready(size_t task);
  double pause_of(size_t task) const;
  void wait_until(double at, size_t task, double now);
  void wake(double now);
  bool has_slot() const;
  // Whether as many tasks run as may, whatever room there is.
  bool is_at_limit() const {
    return options_.max_running > 0 && std::ssize(running_) >= options_.max_running;
  }
  std::optional<TaskStart> place(const Kind& kind, size_t task) const;
  void begin(const TaskStart& start, double now);
  Indices skip_followers(size_t task);

  const Tasks& tasks_;
  DevicePool pool_;
  ScheduleOptions options_;
  std::unordered_map<std::string, size_t> numbers_;  // by name
  std::vector<State> states_;
  Indices first_after_;  // by task: where its followers begin in after_
  Indices after_;
  std::vector<Kind> kinds_;
  std::set<std::pair<Key, size_t>> heads_;  // the first ready task of each kind
  std::map<size_t, Running> running_;
  std::multimap<double, size_t> back_off_;
  std::map<size_t, double> starved_;  // those in back_off_ whose pause may end before, and its end
  Reservations reservations_;         // of the last pass
  size_t counts_[5] = {};
  bool draining_ = false;
};

}  // namespace muster
