// Makes what one attempt of a task is started with: its devices, its environment, and, for a task
// of several ranks, the launcher with an exact plan. Pure but for the CPUs' count; called by the
// runner.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/launch/lease.h"
#include "muster/placement/plan.h"
#include "muster/tasks/schedule/device_pool.h"
#include "muster/tasks/task.h"

namespace muster {

// Facts that are the same for all tasks of a run.
struct TaskRunFacts {
  std::string run_dir{};      // absolute
  std::string mark{};         // MUSTER_MARK
  std::string launcher{};     // the path of `muster`, for tasks of several ranks
  Environment environment{};  // the runner's own
  milliseconds grace{30'000};
  bool lease = true;
  Visibility visibility = Visibility::job;  // of its GPUs, what a task's ranks see
};

// The devices of an allocation, as the journal and the results tell them.
TaskAttempt attempt_of(const DevicePool& pool, const Allocation& where, int number);

// Which leases it takes; none for CPUs and simulated machines.
LeaseWishes lease_wishes_of(const DevicePool& pool, const Allocation& where);

// The plan of the task's ranks over its devices, in their order: a device a rank, or several; with
// fewer devices in turn. A rank that shares a GPU, or has a MIG instance, sees its own alone,
// whatever `visibility`.
Plan plan_of(const Task& task,
             const DevicePool& pool,
             const Allocation& where,
             Visibility visibility = Visibility::job);

// How many threads its share of the host's CPUs is good for.
int threads_of(const DevicePool& pool, const Allocation& where);

// The whole environment of the attempt. `task_dir`: the folder of all attempts; `leases`:
// MUSTER_LEASE_FD's value. The task's own variables win over the runner's; what muster tells a task
// wins over both, but for OMP_NUM_THREADS.
Environment task_environment(const Task& task,
                             const TaskRunFacts& run,
                             const DevicePool& pool,
                             const Allocation& where,
                             int attempt,
                             const std::string& task_dir,
                             const std::string& leases);

// The command that is executed: the task's argv, or the launcher with it, whose run's folder is the
// task's.
Strings task_argv(const Task& task,
                  const TaskRunFacts& run,
                  const DevicePool& pool,
                  const std::string& plan_path,
                  const std::string& task_dir);

}  // namespace muster
