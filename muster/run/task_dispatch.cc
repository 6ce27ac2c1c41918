// The calling thread starts what fits on the free devices, each task in a thread of its own, and
// waits until one has ended; then it looks again. A task's thread runs its function itself, or
// waits for the child process that does. mutex_ guards the load of the devices and the outcomes.
#include "muster/run/task_dispatch.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/lock.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/placement/plan_json.h"
#include "muster/run/task_group.h"

namespace muster {

namespace {

// Returns the device under the number that the task itself sees. A child sees its GPU alone, and a
// group's first rank sees its own first.
Device device_seen(TaskMode mode, const TaskDevice& place) {
  if (mode == TaskMode::thread || !place.device.is_cuda())
    return place.device;
  return {kCUDA, 0};
}

}  // namespace

TaskDispatch::TaskDispatch(const detail::TaskEntries& tasks,
                           const TaskPlan& plan,
                           std::vector<TaskOutcome>& outcomes)
    : tasks_(tasks),
      plan_(plan),
      devices_(plan.devices.all()),
      outcomes_(outcomes),
      load_(devices_.size(), 0) {}

// This thread's intra-op threads are divided by the number of tasks, or ranks of groups, that run
// at the same time at most.
int TaskDispatch::threads_of_each() const {
  IndexSet used;
  size_t wanted = 0;
  for (const TaskPlaces& places : plan_.places) {
    used.insert(places.devices.begin(), places.devices.end());
    wanted += places.count;
  }
  const size_t room = used.size() * options_.per_device;
  const int most = static_cast<int>(std::min(wanted, room));
  return std::max(1, at::get_num_threads() / std::max(1, most));
}

void TaskDispatch::run(const TaskSetOptions& options, const Strings& argv) {
  options_ = options;
  argv_ = argv;
  num_threads_ = threads_of_each();
  const int before = at::get_num_threads();
  {
    std::vector<std::jthread> threads;
    UniqueLock lock(mutex_);
    for (start_what_fits(threads); running_ > 0; start_what_fits(threads)) {
      const size_t last = running_;
      ended_.wait(lock, [&] { return running_ < last; });
    }
  }
  // The number that a thread sets for itself is also what every later thread begins with.
  at::set_num_threads(before);
}

// The caller holds the lock. Tasks start in the order in which they were added, if they fit.
void TaskDispatch::start_what_fits(std::vector<std::jthread>& threads) {
  // Free devices that a group keeps, which was added before and still waits for more.
  IndexSet kept;
  for (size_t task = 0; task < tasks_.size(); ++task) {
    TaskOutcome& outcome = outcomes_[task];
    if (outcome.state != TaskOutcome::State::not_started)
      continue;
    if (stop_.flag()->load() != 0)
      return;
    const Indices devices = free_devices(task, kept);
    if (devices.size() < plan_.places[task].count) {
      kept.insert(devices.begin(), devices.end());
      continue;
    }
    // The thread waits for mutex_, so that it finds its outcome in the state `running`.
    threads.emplace_back([this, task, devices] { run_task(task, devices); });
    Strings labels;
    for (const size_t device : devices) {
      labels.push_back(devices_[device].label);
      ++load_[device];
    }
    outcome.state = TaskOutcome::State::running;
    outcome.place = join(labels, ", ");
    outcome.device = device_seen(tasks_[task].mode, devices_[devices[0]]);
    ++running_;
  }
}

// Returns as many devices as the task needs, those with the fewest tasks, in the order in which it
// may have them. Returns fewer if no more are free.
Indices TaskDispatch::free_devices(size_t task, const IndexSet& kept) const {
  const TaskPlaces& places = plan_.places[task];
  Indices free = places.devices;
  std::erase_if(free, [&](size_t device) {
    return load_[device] >= options_.per_device || kept.contains(device);
  });
  std::ranges::stable_sort(free, {}, [&](size_t device) { return load_[device]; });
  free.resize(std::min(free.size(), places.count));
  Indices ordered = places.devices;
  std::erase_if(ordered, [&](size_t device) { return !contains(free, device); });
  return ordered;
}

// Runs in the task's own thread.
void TaskDispatch::run_task(size_t task, const Indices& devices) {
  {
    const Lock started(mutex_);  // start_what_fits() has noted the task
  }
  const auto start = Clock::now();
  std::exception_ptr failure;
  try {
    call_task(task, devices);
  } catch (...) {
    failure = std::current_exception();
    tasks_[task].fail(failure);
  }
  const Lock lock(mutex_);
  TaskOutcome& outcome = outcomes_[task];
  outcome.seconds = seconds_since(start);
  outcome.state = failure ? TaskOutcome::State::failed : TaskOutcome::State::done;
  if (failure)
    outcome.error = text_of_failure(failure);
  if (failure && options_.fail_fast)
    stop_.set();
  for (const size_t device : devices)
    --load_[device];
  --running_;
  ended_.notify_one();
}

void TaskDispatch::call_task(size_t task, const Indices& devices) {
  const detail::TaskEntry& entry = tasks_[task];
  const Plan plan = plan_.devices.plan_of(entry.name, devices);
  if (entry.mode == TaskMode::thread)
    return call_in_thread(task, devices_[devices[0]], plan.ranks.at(0));
  const Fd text = new_task_memory("muster-plan");
  write_all(text.get(), plan_to_json(plan));
  TaskChild child = child_for(task, devices);
  child.order.plan_fd = text.get();
  const bool is_group = entry.mode == TaskMode::group;
  entry.take_bytes(is_group ? run_task_group(std::move(child), stop_)
                            : run_task_child(child, stop_));
}

void TaskDispatch::call_in_thread(size_t task,
                                  const TaskDevice& place,
                                  const RankPlan& assignment) {
  at::set_num_threads(num_threads_);
  use_task_device(place.device, place.uuid);
  TaskContext context({.name = tasks_[task].name,
                       .device = place.device,
                       .place = place.label,
                       .number = task,
                       .stop = stop_.flag(),
                       .assignment = assignment});
  tasks_[task].call(context);
  context.leave();
}

// The child inherits the leases on its GPUs, so that they last as long as it does.
TaskChild TaskDispatch::child_for(size_t task, const Indices& devices) const {
  const TaskDevice& first = devices_[devices[0]];
  TaskChild child{.argv = argv_, .num_threads = num_threads_};
  child.order.name = tasks_[task].name;
  child.order.number = task;
  child.order.uuid = first.uuid;
  child.order.device = device_seen(tasks_[task].mode, first).str();
  child.order.lease = plan_.lease;
  append_mapped(child.order.tasks, tasks_, &detail::TaskEntry::name);
  for (const size_t device : devices) {
    child.order.rank_places.push_back(devices_[device].label);
    for (const Lease& lease : plan_.leases) {
      if (lease.gpu().value == devices_[device].uuid)
        child.leases.push_back(lease.fd());
    }
  }
  child.order.place = join(child.order.rank_places, ", ");
  // A group's plan shows its ranks their GPUs.
  if (tasks_[task].mode == TaskMode::process || !first.device.is_cuda())
    child.variables = first.variables;
  return child;
}

}  // namespace muster
