// Tasks with equal needs are a kind, and each kind has a queue of those that are ready. heads_ has
// the first of every queue: a pass of starts goes through these alone, in the order of their keys,
// and a task that is placed makes room for the next one of its kind. What comes after what is kept
// in two flat lists, since there may be a million tasks.
#include "muster/tasks/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/placement/selection/selection.h"
#include "muster/tasks/stop_pause.h"

namespace muster {

namespace {

// A back-off doubles each time, up to this many seconds.
constexpr double kLongestBackOff = 3'600;

// The GPUs that the task's `on` allows. Throws: invalid_argument naming the task.
AllowedGpus allowed_by(const DevicePool& pool, const Task& task) {
  try {
    return pool.allowed(task.on);
  } catch (const SelectionError& error) {
    throw invalid_argument("task ",
                           printable(task.name),
                           ": on = '",
                           printable(task.on),
                           "': ",
                           printable(error.problem()),
                           "; see `muster devices`, and correct `on`");
  }
}

// The GPUs of the alternative that has most.
int most_gpus(const TaskNeeds& needs) {
  return max_of<int>(needs, gpus_of);
}

}  // namespace

TaskSchedule::TaskSchedule(const Tasks& tasks, DevicePool pool, ScheduleOptions options)
    : tasks_(tasks),
      pool_(std::move(pool)),
      options_(std::move(options)),
      states_(tasks.size()),
      reservations_(tasks.size()) {
  numbers_.reserve(tasks.size());
  for (const size_t i : indices_of(tasks))
    numbers_.emplace(tasks[i].name, i);
  counts_[index_of(TaskState::waiting)] = tasks.size();
  link_tasks();
  measure_critical_paths();
  make_kinds();
  for (const size_t task : options_.done) {
    set_state(task, TaskState::done);
    for (const size_t next : followers(task))
      --states_[next].missing;
  }
  for (const size_t i : indices_of(tasks)) {
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

std::span<const size_t> TaskSchedule::followers(size_t task) const {
  return std::span(after_).subspan(first_after_[task], first_after_[task + 1] - first_after_[task]);
}

// Sorts the arrows from each task to its followers by counting: first_after_ has how many arrows
// each task has, then where they begin.
void TaskSchedule::link_tasks() {
  first_after_.assign(tasks_.size() + 1, 0);
  std::vector<std::pair<size_t, size_t>> arrows;  // from, to
  for (const size_t i : indices_of(tasks_)) {
    for (const auto& name : tasks_[i].after) {
      const auto before = find(name);
      if (!before) {
        throw invalid_argument("task ",
                               printable(tasks_[i].name),
                               ": expected the name of a task in `after`, got '",
                               printable(name),
                               "'; correct the name");
      }
      arrows.emplace_back(*before, i);
      ++first_after_[*before + 1];
      ++states_[i].missing;
    }
  }
  for (const size_t i : indices_of(tasks_))
    first_after_[i + 1] += first_after_[i];
  Indices at(first_after_.begin(), first_after_.end() - 1);
  after_.resize(arrows.size());
  for (const auto& [from, to] : arrows)
    after_[at[from]++] = to;
}

// All tasks, each behind those that it comes after. Throws: invalid_argument where tasks come after
// each other in a cycle.
Indices TaskSchedule::in_order_of_after() const {
  Ints missing(tasks_.size());
  Indices order;
  order.reserve(tasks_.size());
  for (const size_t i : indices_of(tasks_)) {
    missing[i] = states_[i].missing;
    if (missing[i] == 0)
      order.push_back(i);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const size_t next : followers(order[i])) {
      if (--missing[next] == 0)
        order.push_back(next);
    }
  }
  if (order.size() == tasks_.size())
    return order;
  const auto left = std::ranges::find_if(missing, [](int count) { return count > 0; });
  throw invalid_argument(
      "task ",
      printable(tasks_[left - missing.begin()].name),
      ": expected no cycle of tasks in `after`, got one; remove one of its names");
}

// A task's path is one longer than the longest of its followers', so that these are measured first.
void TaskSchedule::measure_critical_paths() {
  const Indices order = in_order_of_after();
  for (auto task = order.rbegin(); task != order.rend(); ++task) {
    states_[*task].critical_path =
        1 + max_of<int>(followers(*task), [&](size_t next) { return states_[next].critical_path; });
  }
}

// The pool is asked once for each kind, however many tasks it has.
void TaskSchedule::make_kinds() {
  std::map<std::pair<std::string, TaskNeeds>, size_t> known;
  for (const size_t i : indices_of(tasks_)) {
    const Task& task = tasks_[i];
    const auto [place, is_new] = known.try_emplace({task.on, task.needs}, kinds_.size());
    states_[i].kind = place->second;
    if (!is_new)
      continue;
    kinds_.push_back({.wish = {.needs = needs_here(task.needs, pool_.num_gpus() > 0),
                               .allowed = allowed_by(pool_, task)},
                      .on = task.on,
                      .ready = {}});
    check_possible(kinds_.back(), task);
  }
}

// Throws: unavailable naming the task when the pool could meet none of the kind's needs.
void TaskSchedule::check_possible(const Kind& kind, const Task& task) const {
  const TaskNeeds& needs = kind.wish.needs;
  const bool possible = any_of(
      needs, [&](const TaskNeed& need) { return pool_.could_meet(need, kind.wish.allowed); });
  if (possible)
    return;
  const auto texts = mapped(needs, [](const TaskNeed& need) { return describe(need); });
  const int cpus = pool_.hosts().empty() ? 0 : pool_.hosts()[0].cpus;
  throw unavailable("task ",
                    printable(task.name),
                    ": expected needs that the machine could meet, got ",
                    join(texts, ", or "),
                    framed(" of ", printable(kind.on)),
                    " (",
                    plural(pool_.num_gpus(), "GPU"),
                    " to use, ",
                    plural(cpus, "CPU"),
                    "); see `muster devices`, and give fewer or an alternative");
}

TaskSchedule::Key TaskSchedule::key_of(size_t task) const {
  return {tasks_[task].priority, states_[task].critical_path, most_gpus(tasks_[task].needs), task};
}

void TaskSchedule::set_state(size_t task, TaskState state) {
  --counts_[index_of(states_[task].state)];
  states_[task].state = state;
  ++counts_[index_of(state)];
}

// The kind's entry in heads_ changes when the task goes before the one that was its first.
void TaskSchedule::make_ready(size_t task) {
  const size_t number = states_[task].kind;
  Kind& kind = kinds_[number];
  if (!kind.ready.empty())
    heads_.erase({kind.ready.top(), number});
  kind.ready.push(key_of(task));
  heads_.emplace(kind.ready.top(), number);
}

// Places that the journal has of running tasks are taken as they are; nothing is chosen anew.
void TaskSchedule::restore(const std::vector<TaskStanding>& standings, double now) {
  for (Kind& kind : kinds_)
    kind.ready = {};
  heads_.clear();
  Doubles from(tasks_.size(), now);  // when each may start
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
  for (const size_t i : indices_of(tasks_)) {
    if (states_[i].missing == 0 && states_[i].state == TaskState::waiting)
      wait_until(from[i], i, now);
  }
}

// How long the task pauses after its last failure, before it starts again.
double TaskSchedule::pause_of(size_t task) const {
  const double first = in_seconds(tasks_[task].back_off);
  return std::min(first * std::pow(2.0, states_[task].failures - 1), kLongestBackOff);
}

// The task is ready from then on, which may be now.
void TaskSchedule::wait_until(double at, size_t task, double now) {
  if (at > now) {
    back_off_.emplace(at, task);
  } else {
    make_ready(task);
  }
}

// Pauses that are over end.
void TaskSchedule::wake(double now) {
  while (!back_off_.empty() && back_off_.begin()->first <= now) {
    make_ready(back_off_.begin()->second);
    starved_.erase(back_off_.begin()->second);
    back_off_.erase(back_off_.begin());
  }
}

bool TaskSchedule::has_slot() const {
  return !pool_.is_full() && !is_at_limit();
}

// Finds where the task could start now, by the first of its alternatives that is available beside
// what is reserved for others.
std::optional<TaskStart> TaskSchedule::place(const Kind& kind, size_t task) const {
  const TaskNeeds& needs = kind.wish.needs;
  for (const size_t i : indices_of(needs)) {
    if (auto where = pool_.find(needs[i], kind.wish.allowed, reservations_.reserved()))
      return TaskStart{.task = task, .alternative = i, .where = std::move(*where)};
  }
  return std::nullopt;
}

// The head may be gone after its turn, and its kind's next task may come right behind it: the pass
// goes on with whatever follows its key.
TaskStarts TaskSchedule::start(double now) {
  TaskStarts starts;
  if (draining_)
    return starts;
  wake(now);
  reservations_.clear(pool_);
  for (auto head = heads_.begin(); head != heads_.end() && has_slot();) {
    const auto at = *head;
    const auto& [key, number] = at;
    Kind& kind = kinds_[number];
    if (!reservations_.has_use_for_what_is_left(kind.wish, pool_)) {
      ++head;
      continue;
    }
    if (const auto placed = place(kind, key.task)) {
      heads_.erase(head);
      kind.ready.pop();
      if (!kind.ready.empty())
        heads_.emplace(kind.ready.top(), number);
      begin(*placed, now);
      reservations_.count_backfill(placed->where, pool_);
      starts.push_back(*placed);
    } else if (std::next(head) != heads_.end()) {  // else nobody comes after it
      reservations_.add(key.task, kind.wish, pool_);
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

// Called again for the same start, it does nothing.
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
  for (const size_t next : followers(task)) {
    State& state = states_[next];
    if (--state.missing == 0 && state.state == TaskState::waiting)
      make_ready(next);
  }
}

// A failure ends a row of stops: the two are counted apart.
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
  return {.skipped = skip_followers(task)};
}

// All waiting tasks that come after it, at whatever distance, will never start.
Indices TaskSchedule::skip_followers(size_t task) {
  Indices skipped;
  Indices todo = {task};
  while (!todo.empty()) {
    const size_t from = todo.back();
    todo.pop_back();
    for (const size_t next : followers(from)) {
      if (states_[next].state != TaskState::waiting)
        continue;
      set_state(next, TaskState::skipped);
      skipped.push_back(next);
      todo.push_back(next);
    }
  }
  return skipped;
}

double TaskSchedule::stopped(size_t task, double lasted, double now) {
  release(task);
  states_[task].stops = count_stops(states_[task].stops, lasted);
  const double at = now + pause_after_stops(states_[task].stops);
  set_state(task, TaskState::waiting);
  wait_until(at, task, now);
  return at;
}

void TaskSchedule::starved(size_t task, double now) {
  const double at = stopped(task, 0, now);
  if (at - now < kLongestStopPause)
    starved_[task] = at;
}

void TaskSchedule::end_pause_of_starved() {
  if (starved_.empty())
    return;
  const auto [task, at] = *starved_.begin();
  const auto [first, last] = back_off_.equal_range(at);
  back_off_.erase(
      std::ranges::find(first, last, task, &std::multimap<double, size_t>::value_type::second));
  starved_.erase(task);
  make_ready(task);
}

void TaskSchedule::again(size_t task) {
  release(task);
  set_state(task, TaskState::waiting);
  make_ready(task);
}

// The first task of each kind stands for all: their needs are equal.
bool TaskSchedule::waits_for_gpus() const {
  return any_of(heads_, [&](const auto& head) {
    return any_of(kinds_[head.second].wish.needs, &TaskNeed::gpus);
  });
}

bool TaskSchedule::waits_for_memory() const {
  const auto asks_for_memory = [](const TaskNeed& need) {
    return need.memory_bytes > 0;
  };
  return any_of(heads_, [&](const auto& head) {
    return any_of(kinds_[head.second].wish.needs, asks_for_memory);
  });
}

// Only the GPU's memory is in the way then: all else of it suits.
bool TaskSchedule::waits_for_memory_of(int host, int gpu) const {
  const uint64_t left = pool_.hosts()[host].gpus[gpu].memory_left;
  for (const auto& [key, number] : heads_) {
    const TaskWish& wish = kinds_[number].wish;
    for (const TaskNeed& need : wish.needs) {
      const bool lacks_memory = need.gpus > 0 && need.memory_bytes > left;
      if (lacks_memory && pool_.unfit(need, wish.allowed, host, gpu).empty())
        return true;
    }
  }
  return false;
}

// A task that has ended and whose record is not on the disk yet still counts as running.
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

}  // namespace muster
