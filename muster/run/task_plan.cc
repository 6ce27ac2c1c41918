#include "muster/run/task_plan.h"

#include <errno.h>

#include <algorithm>
#include <set>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/rank_env.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/lease_plan.h"

namespace muster {

namespace {

// Whoever was given devices by a launcher has that one's leases; when there are none, none are
// wanted.
bool leases_are_wanted(const TaskSetOptions& options) {
  if (!options.lease)
    return false;
  return get_env(kLeaseVariable) || (!get_env("MUSTER_DEVICE") && !rank_env_from_environment());
}

Inventory machine_of_tasks() {
  const auto file = get_env("MUSTER_INVENTORY");
  return file ? read_inventory(*file) : probe_this_machine();
}

TaskPlan place_tasks(const std::vector<detail::TaskEntry>& tasks,
                     const Inventory& machine,
                     const TaskSetOptions& options) {
  TaskPlan plan{.devices = {machine,
                            machine.simulated ? VisibilityMasks{} : inherited_masks(),
                            options.cpu_slots}};
  for (const detail::TaskEntry& task : tasks)
    plan.places.push_back(plan.devices.places_of(task));
  return plan;
}

// What the tasks would have if all ran at once: more devices they cannot use.
std::vector<size_t> devices_in_use(const TaskPlan& plan) {
  std::vector<int> load(plan.devices.all().size(), 0);
  std::set<size_t> used;
  for (const TaskPlaces& places : plan.places) {
    std::vector<size_t> devices = places.devices;
    std::stable_sort(
        devices.begin(), devices.end(), [&](size_t a, size_t b) { return load[a] < load[b]; });
    devices.resize(std::min(places.count, devices.size()));
    for (const size_t device : devices)
      ++load[device];
    used.insert(devices.begin(), devices.end());
  }
  return {used.begin(), used.end()};
}

// GPUs without a lease are not to be used.
void leave_out_others(TaskPlan& plan, const std::vector<size_t>& used) {
  for (TaskPlaces& places : plan.places) {
    std::erase_if(places.devices, [&](size_t device) {
      return !plan.devices.all()[device].uuid.empty() &&
             !std::binary_search(used.begin(), used.end(), device);
    });
  }
}

}  // namespace

TaskPlan plan_tasks(const std::vector<detail::TaskEntry>& tasks, const TaskSetOptions& options) {
  TaskPlan made = place_tasks(tasks, machine_of_tasks(), options);
  Plan first = made.devices.plan_of("", devices_in_use(made));
  if (lease_wishes(first).empty())
    return made;
  made.lease = leases_are_wanted(options);
  if (!made.lease)
    return made;
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  const auto make_plan = [&](const BusyGpus& busy) {
    if (!first.ranks.empty())
      return std::exchange(first, Plan{});
    made = place_tasks(tasks, without_busy(machine_of_tasks(), busy), options);
    return made.devices.plan_of("", devices_in_use(made));
  };
  const LeasePlanOptions rules{
      .replan = true,
      .wait = options.wait,
      .on_wait = [](const std::string& line) { log(LogLevel::info, line); },
      .advice =
          "wait for them with TaskSetOptions::wait, name other devices, or share them without "
          "leases "
          "(TaskSetOptions::lease)"};
  made.leases =
      plan_with_leases(
          folder, make_plan, {.job = make_uuid(), .program = program_invocation_short_name}, rules)
          .leases;
  leave_out_others(made, devices_in_use(made));
  return made;
}

}  // namespace muster
