// `muster tasks --submit SYSTEM`: the tasks go to a batch system, and nothing of the run is left here. For
// tasks_run.cc.
#pragma once

#include "muster/cli/tasks_run.h"
#include "muster/cli/tasks_which_run.h"

namespace muster {

// The exit code. With --dry-run it prints what sbatch would be given, and neither writes nor submits. Throws:
// invalid_argument for a flag that Slurm takes no notice of, before anything is done.
int submit_tasks(const TasksFlags& flags, TasksRun& run);

}  // namespace muster
