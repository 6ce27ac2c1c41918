// Before the tasks of a TaskSet start: which devices each may have, with leases on the GPUs among them. For
// task_set.cc.
#pragma once

#include <vector>

#include "muster/launch/lease.h"
#include "muster/run/task_devices.h"
#include "muster/run/task_set.h"

namespace muster {

struct TaskPlan {
  TaskDevices devices;
  std::vector<TaskPlaces> places = {};  // of the tasks, in their order
  std::vector<Lease> leases = {};       // of the GPUs in `places`; empty: none are to be taken
  // Whether groups take leases of their own GPUs, which are those above: false where the user, or the
  // launcher that gave this process its devices, wants none.
  bool lease = true;
};

// GPUs that another job holds are left out like those that are broken.
// Blocking: as long as `options.wait`. Throws: as TaskDevices::places_of; unavailable naming GPUs that stay
// busy and who holds them.
TaskPlan plan_tasks(const std::vector<detail::TaskEntry>& tasks, const TaskSetOptions& options);

}  // namespace muster
