#include "muster/run/task_dispatch.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <set>

#include "muster/base/clock.h"

namespace muster {

namespace {

// A child sees its GPU alone.
c10::Device device_seen(TaskMode mode, const TaskDevice& place) {
  return mode == TaskMode::process && place.device.is_cuda() ? c10::Device(c10::kCUDA, 0) : place.device;
}

}  // namespace

TaskDispatch::TaskDispatch(const std::vector<detail::TaskEntry>& tasks, const std::vector<TaskPlaces>& places,
                           const std::vector<TaskDevice>& devices, std::vector<TaskOutcome>& outcomes)
    : tasks_(tasks), places_(places), devices_(devices), outcomes_(outcomes), load_(devices.size(), 0) {}

// All that may run at once, at the most, get the same part of this thread's.
int TaskDispatch::threads_of_each() const {
  std::set<size_t> used;
  for (const TaskPlaces& places : places_) used.insert(places.devices.begin(), places.devices.end());
  const size_t most = std::min(tasks_.size(), used.size() * static_cast<size_t>(options_.per_device));
  return std::max(1, at::get_num_threads() / std::max(1, static_cast<int>(most)));
}

void TaskDispatch::run(const TaskSetOptions& options, const std::vector<std::string>& argv) {
  options_ = options;
  argv_ = argv;
  num_threads_ = threads_of_each();
  const int before = at::get_num_threads();
  {
    std::vector<std::jthread> threads;
    std::unique_lock lock(mutex_);
    for (start_what_fits(threads); running_ > 0; start_what_fits(threads)) {
      const size_t last = running_;
      ended_.wait(lock, [&] { return running_ < last; });
    }
  }
  // The number that a thread sets for itself is also what every later thread begins with.
  at::set_num_threads(before);
}

void TaskDispatch::start_what_fits(std::vector<std::jthread>& threads) {
  for (size_t task = 0; task < tasks_.size(); ++task) {
    TaskOutcome& outcome = outcomes_[task];
    if (outcome.state != TaskOutcome::State::not_started) continue;
    if (stop_.flag()->load() != 0) return;
    const size_t device = free_device(task);
    if (device == kNone) continue;
    threads.emplace_back([this, task, device] { run_task(task, device); });  // it waits for mutex_
    outcome.state = TaskOutcome::State::running;
    outcome.place = devices_[device].label;
    outcome.device = device_seen(tasks_[task].mode, devices_[device]);
    ++load_[device];
    ++running_;
  }
}

// The one with the fewest tasks.
size_t TaskDispatch::free_device(size_t task) const {
  const std::vector<size_t>& allowed = places_[task].devices;
  const auto least = std::min_element(allowed.begin(), allowed.end(),
                                      [&](size_t a, size_t b) { return load_[a] < load_[b]; });
  return load_[*least] < options_.per_device ? *least : kNone;
}

void TaskDispatch::run_task(size_t task, size_t device) {
  { const std::lock_guard started(mutex_); }
  const auto start = Clock::now();
  std::exception_ptr failure;
  try {
    call_task(task, device);
  } catch (...) {
    failure = std::current_exception();
    tasks_[task].fail(failure);
  }
  const std::lock_guard lock(mutex_);
  TaskOutcome& outcome = outcomes_[task];
  outcome.seconds = seconds_since(start);
  outcome.state = failure ? TaskOutcome::State::failed : TaskOutcome::State::done;
  if (failure) outcome.error = text_of_failure(failure);
  if (failure && options_.fail_fast) stop_.set();
  --load_[device];
  --running_;
  ended_.notify_one();
}

void TaskDispatch::call_task(size_t task, size_t device) {
  const detail::TaskEntry& entry = tasks_[task];
  const TaskDevice& place = devices_[device];
  if (entry.mode == TaskMode::thread) {
    at::set_num_threads(num_threads_);
    use_task_device(place.device, place.uuid);
    TaskContext context({.name = entry.name,
                         .device = place.device,
                         .place = place.label,
                         .number = task,
                         .stop = stop_.flag()});
    entry.call(context);
    return;
  }
  TaskChild child{.argv = argv_, .variables = place.variables, .num_threads = num_threads_};
  child.order.name = entry.name;
  child.order.number = task;
  child.order.place = place.label;
  child.order.uuid = place.uuid;
  child.order.device = device_seen(entry.mode, place);
  for (const detail::TaskEntry& each : tasks_) child.order.tasks.push_back(each.name);
  entry.take_bytes(run_task_child(child, stop_));
}

}  // namespace muster
