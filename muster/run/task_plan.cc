// The tasks are placed on the machine as it is, and the GPUs that they would use at once are
// leased. If another job holds one of these, the tasks are placed again without the busy GPUs,
// until either all leases are there or nothing is left to place on.
#include "muster/run/task_plan.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/lists.h"
#include "muster/base/rank_env.h"
#include "muster/launch/given_gpus.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/lease_plan.h"
#include "muster/run/rank_device.h"

namespace muster {

namespace {

// A process that got its devices from a launcher uses the launcher's leases; if that one takes
// none, none are wanted.
bool leases_are_wanted(const TaskSetOptions& options) {
  if (!options.lease)
    return false;
  return get_env(kLeaseVariable) || (!get_env("MUSTER_DEVICE") && !rank_env_from_environment());
}

TaskPlan place_tasks(const detail::TaskEntries& tasks,
                     const SeenMachine& seen,
                     const TaskSetOptions& options) {
  TaskPlan plan{.devices = {seen.machine, seen.masks, options.cpu_slots}};
  for (const detail::TaskEntry& task : tasks)
    plan.places.push_back(plan.devices.places_of(task));
  return plan;
}

// Returns the devices that the tasks would have if all ran at once, which is the most that they can
// use. The list is sorted.
Indices devices_in_use(const TaskPlan& plan) {
  Ints load(plan.devices.all().size(), 0);
  IndexSet used;
  for (const TaskPlaces& places : plan.places) {
    Indices devices = places.devices;
    std::ranges::stable_sort(devices, {}, [&](size_t device) { return load[device]; });
    devices.resize(std::min(places.count, devices.size()));
    for (const size_t device : devices)
      ++load[device];
    used.insert(devices.begin(), devices.end());
  }
  return {used.begin(), used.end()};
}

// Takes the GPUs without a lease, those that are not among `used`, from the tasks' places.
void leave_out_others(TaskPlan& plan, const Indices& used) {
  const auto has_no_lease = [&](size_t device) {
    const bool is_gpu = !plan.devices.all()[device].uuid.empty();
    return is_gpu && !std::ranges::binary_search(used, device);
  };
  for (TaskPlaces& places : plan.places)
    std::erase_if(places.devices, has_no_lease);
}

}  // namespace

TaskPlan plan_tasks(const detail::TaskEntries& tasks, const TaskSetOptions& options) {
  if (!get_env("MUSTER_INVENTORY"))
    keep_to_given_gpus();
  TaskPlan made = place_tasks(tasks, see_machine(), options);
  Plan first = made.devices.plan_of("", devices_in_use(made));
  if (lease_wishes(first).empty())
    return made;
  made.lease = leases_are_wanted(options);
  if (!made.lease)
    return made;
  const LeaseFolder folder({.inherited = get_env(kLeaseVariable).value_or("")});
  // The first call has its plan already; each later one looks at the machine again.
  const auto make_plan = [&](const BusyGpus& busy) {
    if (!first.ranks.empty())
      return std::exchange(first, Plan{});
    SeenMachine seen = see_machine();
    seen.machine = without_busy(std::move(seen.machine), busy);
    made = place_tasks(tasks, seen, options);
    return made.devices.plan_of("", devices_in_use(made));
  };
  const LeasePlanOptions rules{
      .replan = true,
      .wait = options.wait,
      .advice =
          "wait for them with TaskSetOptions::wait, name other devices, or share them without "
          "leases (TaskSetOptions::lease)"};
  made.leases =
      plan_with_leases(
          folder, make_plan, {.job = make_uuid(), .program = program_invocation_short_name}, rules)
          .leases;
  leave_out_others(made, devices_in_use(made));
  return made;
}

}  // namespace muster
