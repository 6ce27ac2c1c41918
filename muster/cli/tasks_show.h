// What `muster tasks` shows of a run that is not started by it, or is over: what would start first, why a
// task waits, what came of all. For tasks_run.cc.
#pragma once

#include "muster/cli/tasks_machines.h"
#include "muster/cli/tasks_run.h"
#include "muster/cli/tasks_which_run.h"
#include "muster/tasks/runner.h"
#include "muster/tasks/schedule/schedule.h"

namespace muster {

// --dry-run, as text or JSON. The exit code. `schedule` is used up: what other jobs hold on the machines
// counts in it.
int show_first_starts(const TasksFlags& flags, const TasksRun& run, const TaskMachines& machines,
                      Schedule& schedule);

// --explain, in the same way. Throws: invalid_argument when no task has that name.
int explain_task(const TasksFlags& flags, const TasksRun& run, const TaskMachines& machines,
                 Schedule& schedule);

// Whether --csv and --html can be written, before anything starts; what is there stays as it is. Throws:
// invalid_argument.
void check_result_files(const TasksFlags& flags);

// The table or JSON, then the files that were asked for. What has not ended counts as skipped from here on.
void show_results(const TasksFlags& flags, const TasksRun& run, const Inventory& machine,
                  RunOutcome& outcome);

}  // namespace muster
