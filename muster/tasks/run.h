// The spine of `muster tasks`: which run → machines → schedule → folder and journal → the runner →
// results. Knows nothing of ssh and of how a batch system names its nodes: who calls it says which
// machines there are.
#pragma once

#include <string>

#include "muster/base/strings.h"
#include "muster/tasks/options.h"

namespace muster::tasks {

// Runs the tasks, or says what would be done; what is asked for is printed on standard output. The
// exit code: 0 all are done, 1 some are not, kTimeLimitExitCode, 128 + signal. Blocking: until all
// has ended. Throws: Error before anything is started.
int run(const TasksOptions& options);

// Hands them to Slurm instead, with more words of sbatch's command line. Of the options those count
// that say which tasks, the run's folder, `visibility` and `dry_run`. Throws: Error.
void submit(const TasksOptions& options, const Strings& sbatch);

}  // namespace muster::tasks
