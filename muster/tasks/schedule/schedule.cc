#include "muster/tasks/schedule/schedule.h"

#include <algorithm>
#include <cmath>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/selection.h"
#include "muster/tasks/stop_pause.h"

namespace muster {

namespace {

// A back-off doubles each time, and no longer than this.
constexpr double kLongestBackOff = 3'600;

// Equal texts are equal needs.
std::string kind_key(const Task& task) {
  std::string key = cat(task.on, "\n");
  for (const TaskNeed& need : task.needs) {
    key += cat(need.gpus,
               " ",
               need.memory_bytes,
               " ",
               need.cpus,
               " ",
               need.without_gpus,
               " ",
               need.model,
               "\n");
  }
  return key;
}

// Throws: invalid_argument naming the task.
AllowedGpus allowed_by(const Pool& pool, const Task& task) {
  try {
    return pool.allowed(task.on);
  } catch (const SelectionError& error) {
    throw Error(ErrorCode::invalid_argument,
                cat("task ",
                    printable(task.name),
                    ": on = '",
                    printable(task.on),
                    "': ",
                    printable(error.problem()),
                    "; see `muster devices`, and correct `on`"));
  }
}

int most_gpus(const std::vector<TaskNeed>& needs) {
  int most = 0;
  for (const TaskNeed& need : needs)
    most = std::max(most, gpus_of(need));
  return most;
}

}  // namespace

TaskSchedule::TaskSchedule(const std::vector<Task>& tasks, Pool pool, ScheduleOptions options)
    : tasks_(tasks),
      pool_(std::move(pool)),
      options_(std::move(options)),
      states_(tasks.size()),
      reservations_(tasks.size()) {
  numbers_.reserve(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i)
    numbers_.emplace(tasks[i].name, i);
  counts_[static_cast<size_t>(TaskState::waiting)] = tasks.size();
  link_tasks();
  measure_critical_paths();
  make_kinds();
  for (const size_t task : options_.done) {
    set_state(task, TaskState::done);
    for (size_t a = first_after_[task]; a < first_after_[task + 1]; ++a)
      --states_[after_[a]].missing;
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (states_[i].missing == 0 && states_[i].state == TaskState::waiting)
      make_ready(i);
  }
}

std::optional<size_t> TaskSchedule::find(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end())
    return std::nullopt;
  return found->second;
}

void TaskSchedule::link_tasks() {
  first_after_.assign(tasks_.size() + 1, 0);
  std::vector<std::pair<size_t, size_t>> arrows;  // from, to
  for (size_t i = 0; i < tasks_.size(); ++i) {
    for (const std::string& name : tasks_[i].after) {
      const auto before = find(name);
      if (!before) {
        throw Error(ErrorCode::invalid_argument,
                    cat("task ",
                        printable(tasks_[i].name),
                        ": expected the name of a task in `after`, got '",
                        printable(name),
                        "'; correct the name"));
      }
      arrows.emplace_back(*before, i);
      ++first_after_[*before + 1];
      ++states_[i].missing;
    }
  }
  for (size_t i = 0; i < tasks_.size(); ++i)
    first_after_[i + 1] += first_after_[i];
  std::vector<size_t> at(first_after_.begin(), first_after_.end() - 1);
  after_.resize(arrows.size());
  for (const auto& [from, to] : arrows)
    after_[at[from]++] = to;
}

// From the tasks that nothing is after backwards; tasks that are left over are in a circle.
void TaskSchedule::measure_critical_paths() {
  std::vector<int> missing(tasks_.size());
  std::vector<size_t> order;
  order.reserve(tasks_.size());
  for (size_t i = 0; i < tasks_.size(); ++i) {
    missing[i] = states_[i].missing;
    if (missing[i] == 0)
      order.push_back(i);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t a = first_after_[order[i]]; a < first_after_[order[i] + 1]; ++a) {
      if (--missing[after_[a]] == 0)
        order.push_back(after_[a]);
    }
  }
  if (order.size() < tasks_.size()) {
    const auto left =
        std::find_if(missing.begin(), missing.end(), [](int count) { return count > 0; });
    throw Error(ErrorCode::invalid_argument,
                cat("task ",
                    printable(tasks_[static_cast<size_t>(left - missing.begin())].name),
                    ": expected no cycle of tasks in `after`, got one; remove one of its names"));
  }
  for (auto task = order.rbegin(); task != order.rend(); ++task) {
    int longest = 0;
    for (size_t a = first_after_[*task]; a < first_after_[*task + 1]; ++a) {
      longest = std::max(longest, states_[after_[a]].critical_path);
    }
    states_[*task].critical_path = longest + 1;
  }
}

void TaskSchedule::make_kinds() {
  std::unordered_map<std::string, size_t> known;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const auto [place, is_new] = known.emplace(kind_key(tasks_[i]), kinds_.size());
    states_[i].kind = place->second;
    if (!is_new)
      continue;
    kinds_.push_back({.wish = {.needs = needs_here(tasks_[i].needs, pool_.num_gpus() > 0),
                               .allowed = allowed_by(pool_, tasks_[i])},
                      .on = tasks_[i].on,
                      .ready = {}});
    const Kind& kind = kinds_.back();
    const bool possible =
        std::any_of(kind.wish.needs.begin(), kind.wish.needs.end(), [&](const TaskNeed& need) {
          return pool_.could_meet(need, kind.wish.allowed);
        });
    if (possible)
      continue;
    std::vector<std::string> needs;
    for (const TaskNeed& need : kind.wish.needs)
      needs.push_back(describe(need));
    throw Error(ErrorCode::unavailable,
                cat("task ",
                    printable(tasks_[i].name),
                    ": expected needs that the machine could meet, got ",
                    join(needs, ", or "),
                    kind.on.empty() ? "" : cat(" of ", printable(kind.on)),
                    " (",
                    pool_.num_gpus(),
                    " GPUs to use, ",
                    pool_.hosts().empty() ? 0 : pool_.hosts()[0].cpus,
                    " CPUs); see `muster devices`, and give fewer or an alternative"));
  }
}

TaskSchedule::Key TaskSchedule::key_of(size_t task) const {
  return {tasks_[task].priority, states_[task].critical_path, most_gpus(tasks_[task].needs), task};
}

void TaskSchedule::set_state(size_t task, TaskState state) {
  --counts_[static_cast<size_t>(states_[task].state)];
  states_[task].state = state;
  ++counts_[static_cast<size_t>(state)];
}

void TaskSchedule::make_ready(size_t task) {
  Kind& kind = kinds_[states_[task].kind];
  if (!kind.ready.empty())
    heads_.erase({kind.ready.top(), states_[task].kind});
  kind.ready.push(key_of(task));
  heads_.emplace(kind.ready.top(), states_[task].kind);
}

void TaskSchedule::restore(const std::vector<TaskStanding>& standings, double now) {
  for (Kind& kind : kinds_)
    kind.ready = {};
  heads_.clear();
  std::vector<double> from(tasks_.size(), now);  // that each may start
  for (const TaskStanding& standing : standings) {
    State& state = states_[standing.task];
    state.failures = standing.failures;
    state.stops = standing.stops;
    if (standing.failures > 0)
      from[standing.task] = standing.failed_at + pause_of(standing.task);
    if (standing.stops > 0)
      from[standing.task] = standing.stopped_at + pause_after_stops(standing.stops);
    set_state(standing.task, standing.state);
    if (!standing.where)
      continue;
    pool_.take(*standing.where);
    running_[standing.task] = {*standing.where, standing.began};
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (states_[i].missing > 0 || states_[i].state != TaskState::waiting)
      continue;
    wait_until(from[i], i, now);
  }
}

// After its last failure, before it starts again.
double TaskSchedule::pause_of(size_t task) const {
  const double first = std::chrono::duration<double>(tasks_[task].back_off).count();
  return std::min(first * std::pow(2.0, states_[task].failures - 1), kLongestBackOff);
}

void TaskSchedule::wait_until(double at, size_t task, double now) {
  if (at > now) {
    back_off_.emplace(at, task);
  } else {
    make_ready(task);
  }
}

void TaskSchedule::wake(double now) {
  while (!back_off_.empty() && back_off_.begin()->first <= now) {
    make_ready(back_off_.begin()->second);
    back_off_.erase(back_off_.begin());
  }
}

bool TaskSchedule::has_slot() const {
  return !pool_.is_full() &&
         (options_.max_running == 0 || running_.size() < static_cast<size_t>(options_.max_running));
}

std::optional<TaskStart> TaskSchedule::place(const Kind& kind, size_t task) const {
  const std::vector<TaskNeed>& needs = kind.wish.needs;
  for (size_t i = 0; i < needs.size(); ++i) {
    if (auto where = pool_.find(needs[i], kind.wish.allowed, reservations_.reserved()))
      return TaskStart{.task = task, .alternative = i, .where = std::move(*where)};
  }
  return std::nullopt;
}

std::vector<TaskStart> TaskSchedule::start(double now) {
  std::vector<TaskStart> starts;
  if (draining_)
    return starts;
  wake(now);
  reservations_.clear(pool_);
  for (auto head = heads_.begin(); head != heads_.end() && has_slot();) {
    const std::pair<Key, size_t> at = *head;
    Kind& kind = kinds_[at.second];
    const size_t task = at.first.task;
    if (!reservations_.has_use_for_what_is_left(kind.wish, pool_)) {
      ++head;
      continue;
    }
    const auto placed = place(kind, task);
    if (placed) {
      heads_.erase(head);
      kind.ready.pop();
      if (!kind.ready.empty())
        heads_.emplace(kind.ready.top(), at.second);
      begin(*placed, now);
      reservations_.count_backfill(placed->where, pool_);
      starts.push_back(*placed);
    } else if (std::next(head) != heads_.end()) {  // else nobody comes after it
      reservations_.add(task, kind.wish, pool_);
    }
    reservations_.look(pool_);
    head = heads_.upper_bound(at);
  }
  return starts;
}

void TaskSchedule::begin(const TaskStart& start, double now) {
  pool_.take(start.where);
  running_[start.task] = {start.where, now};
  reservations_.forget(start.task);
  set_state(start.task, TaskState::running);
}

void TaskSchedule::release(size_t task) {
  const auto running = running_.find(task);
  if (running == running_.end())
    return;
  pool_.give_back(running->second.where);
  running_.erase(running);
}

void TaskSchedule::done(size_t task) {
  release(task);
  set_state(task, TaskState::done);
  for (size_t a = first_after_[task]; a < first_after_[task + 1]; ++a) {
    State& next = states_[after_[a]];
    if (--next.missing == 0 && next.state == TaskState::waiting)
      make_ready(after_[a]);
  }
}

TaskRetry TaskSchedule::failed(size_t task, double now) {
  release(task);
  const int failures = ++states_[task].failures;
  states_[task].stops = 0;
  if (failures <= tasks_[task].retries) {
    const double at = now + pause_of(task);
    set_state(task, TaskState::waiting);
    back_off_.emplace(at, task);
    return {.at = at};
  }
  set_state(task, TaskState::failed);
  TaskRetry end;
  std::vector<size_t> todo = {task};
  while (!todo.empty()) {
    const size_t from = todo.back();
    todo.pop_back();
    for (size_t a = first_after_[from]; a < first_after_[from + 1]; ++a) {
      const size_t next = after_[a];
      if (states_[next].state != TaskState::waiting)
        continue;
      set_state(next, TaskState::skipped);
      end.skipped.push_back(next);
      todo.push_back(next);
    }
  }
  return end;
}

double TaskSchedule::stopped(size_t task, double lasted, double now) {
  release(task);
  states_[task].stops = count_stops(states_[task].stops, lasted);
  const double at = now + pause_after_stops(states_[task].stops);
  set_state(task, TaskState::waiting);
  wait_until(at, task, now);
  return at;
}

void TaskSchedule::again(size_t task) {
  release(task);
  set_state(task, TaskState::waiting);
  make_ready(task);
}

bool TaskSchedule::waits_for_memory() const {
  return std::any_of(heads_.begin(), heads_.end(), [&](const auto& head) {
    const std::vector<TaskNeed>& needs = kinds_[head.second].wish.needs;
    return std::any_of(
        needs.begin(), needs.end(), [](const TaskNeed& need) { return need.memory_bytes > 0; });
  });
}

bool TaskSchedule::waits_for_memory_of(int host, int gpu) const {
  const uint64_t left =
      pool_.hosts()[static_cast<size_t>(host)].gpus[static_cast<size_t>(gpu)].memory_left;
  return std::any_of(heads_.begin(), heads_.end(), [&](const auto& head) {
    const Kind& kind = kinds_[head.second];
    return std::any_of(kind.wish.needs.begin(), kind.wish.needs.end(), [&](const TaskNeed& need) {
      return need.gpus > 0 && need.memory_bytes > left &&
             pool_.unfit(need, kind.wish.allowed, host, gpu).empty();
    });
  });
}

bool TaskSchedule::finished() const {
  if (!running_.empty() || count(TaskState::running) > 0)
    return false;
  return draining_ || count(TaskState::waiting) == 0;
}

std::optional<double> TaskSchedule::next_time() const {
  if (back_off_.empty() || draining_)
    return std::nullopt;
  return back_off_.begin()->first;
}

std::vector<size_t> TaskSchedule::running() const {
  std::vector<size_t> tasks;
  tasks.reserve(running_.size());
  for (const auto& [task, running] : running_)
    tasks.push_back(task);
  return tasks;
}

}  // namespace muster
