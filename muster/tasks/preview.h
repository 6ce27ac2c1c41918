// Previews of a run, which start nothing: what would start first, and why a task waits. A run that
// goes on in another process is shown as it stands there. For run.cc.
#pragma once

#include <string>

#include "muster/tasks/hosts/machines.h"
#include "muster/tasks/schedule/schedule.h"
#include "muster/tasks/which_run.h"

namespace muster {

// --dry-run, as text or JSON. `schedule` is used up: what other jobs hold on the machines counts in
// it.
std::string first_starts(const TasksRun& run,
                         const TaskMachines& machines,
                         TaskSchedule& schedule,
                         bool json);

// --explain, in the same way. Throws: invalid_argument when no task has that name.
std::string why_task_waits(const std::string& name,
                           const TasksRun& run,
                           const TaskMachines& machines,
                           TaskSchedule& schedule,
                           bool json);

}  // namespace muster
