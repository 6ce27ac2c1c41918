// The batch script and the flags of sbatch for tasks that ask for the same. For plan.cc; a private
// header. Pure.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/tasks/slurm/submit.h"

namespace muster {

// Flags for what the task needs; two tasks with the same flags and the same script can be of one
// array. Throws: invalid_argument for what Slurm cannot be asked for. `highest` is the highest
// priority of all tasks.
Strings slurm_request(const Task& task, int highest);

// A line for each thing that Slurm cannot be told of this task.
Strings slurm_notes(const Task& task);

std::string slurm_script(const Task& task,
                         const std::string& elements_path,
                         const SlurmOptions& options);

// "2-03:00:00", rounded up to a second.
std::string slurm_time(milliseconds time);

}  // namespace muster
