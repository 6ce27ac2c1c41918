// `--submit slurm`: the tasks as job arrays of Slurm, which then decides when and where each runs
// and keeps the books. For the command. plan_slurm is pure: every file and every argument is in the
// plan; submit_slurm writes and submits it.
//
// What becomes of a task: the first of its needs (Slurm knows no alternatives): `gpus` is
// --gres=gpu:N, `model` the type in it, in lower case; `cpus` is --cpus-per-task; a lower priority
// is --nice; time_limit is
// --time; retries are tried again by the job's script. Of what Slurm gives it, an element gets what
// it would get of such a machine here (element.h). `after` becomes
// --dependency: afterok, or aftercorr where each task is after another one of the same array.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/placement/plan.h"
#include "muster/tasks/task.h"

namespace muster {

struct SlurmOptions {
  std::string run_dir{};  // absolute; arrays go to its folder slurm, their output to logs
  Visibility visibility = Visibility::job;  // of its GPUs, what a task's ranks see
  Strings exec_element{};                   // what becomes an element: FILE and INDEX follow
  Strings sbatch = {"sbatch"};              // with what the user adds, as --partition=gpu
  int max_array = 1000;  // elements of one array; Slurm's MaxArraySize is 1001 unless it was set
};

// All tasks that ask for the same and are after the same.
struct SlurmArray {
  Indices tasks{};      // positions in the list given
  Ints indices{};       // the array's index of each
  Strings arguments{};  // of sbatch, before --dependency and the script
  std::string script_path{};
  std::string script{};
  std::string elements_path{};
  std::string elements{};  // a line an index, as JSON; empty where there is no such index
  // Arrays before this one, and an index of theirs; -1: all.
  std::vector<std::pair<size_t, int>> after{};
  bool corresponding = false;  // each element after the element of the same index
};

struct SlurmPlan {
  std::vector<SlurmArray> arrays{};  // in an order in which they can be submitted
  Strings notes{};                   // what Slurm cannot be told, a line each
};

// Throws: invalid_argument for what Slurm cannot be asked for: `on`, a model that is no type's
// name, text that is no UTF-8, a task after more than a thousand others that are not whole arrays.
SlurmPlan plan_slurm(const Tasks& tasks, const SlurmOptions& options);

// "--dependency=afterok:12:13_4"; empty: none. `job_ids` of the arrays before it.
std::string dependency_argument(const SlurmArray& array, const Strings& job_ids);

// The command that submits the array, once the arrays before it have their `job_ids`.
Strings sbatch_argv(const SlurmArray& array, const SlurmOptions& options, const Strings& job_ids);

// Writes the plan's files and submits the arrays, one after the other; the ids of their jobs, which
// are in slurm/jobs.json too. Blocking: as long as sbatch takes. Throws: SpawnError when there is
// no sbatch; io when it refuses, naming what has been submitted before.
Strings submit_slurm(const SlurmPlan& plan, const Tasks& tasks, const SlurmOptions& options);

}  // namespace muster
