// Tasks that go to a batch system, so that nothing of the run is left here. For run.h's `submit`.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/tasks/which_run.h"

namespace muster {

// Submits them to Slurm and says so. With `dry_run` it prints what sbatch would be given, and
// neither writes nor submits. `sbatch`: more words of its command line. Throws: invalid_argument;
// as submit_slurm.
void submit_to_slurm(TasksRun& run, const Strings& sbatch, bool dry_run);

}  // namespace muster
