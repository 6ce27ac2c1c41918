// Decides, before the tasks of a TaskSet start, which devices each may have, and leases the GPUs
// among them. For task_set.cc.
#pragma once

#include <vector>

#include "muster/launch/lease.h"
#include "muster/run/task_devices.h"
#include "muster/run/task_set.h"

namespace muster {

struct TaskPlan {
  TaskDevices devices;
  std::vector<TaskPlaces> places{};  // of the tasks, in order
  Leases leases{};                   // of the GPUs in `places`; empty: none are to be leased
  // Whether groups lease their own GPUs, a subset of those above. False if the user, or the
  // launcher that assigned this process's devices, wants no leases.
  bool lease = true;
};

// Skips GPUs that another job holds, like broken ones.
// Blocking: at most `options.wait`.
// Throws: as TaskDevices::places_of; unavailable naming GPUs that stay busy and their holders.
TaskPlan plan_tasks(const detail::TaskEntries& tasks, const TaskSetOptions& options);

}  // namespace muster
