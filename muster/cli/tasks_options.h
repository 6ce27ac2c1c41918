// The flags of `muster tasks`, and what they ask for. For tasks.cc.
#pragma once

#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/tasks/options.h"

namespace muster {

struct TasksFlags {
  std::string spec{};
  Strings sweeps{};
  Strings command{};  // after "--"
  std::string gpus{};
  std::string need_gpus{};  // a sweep's tasks: GPUs of each
  std::string need_memory{};
  std::string need_cpus{};
  std::optional<int> retries{};
  int cpus = 0;
  std::string inventory{};
  std::string hosts{};
  std::string hostfile{};
  std::string ssh{};
  std::string remote_muster{};
  bool standalone = false;  // this machine alone, in a Slurm allocation too
  bool serve = false;       // this machine's part of a run on another
  std::string numa_binding{};
  std::string visibility{};
  int jobs = 0;
  bool fail_fast = false;
  bool keep_going = false;
  bool allow_nan = false;
  std::string run_dir{};
  std::string resume{};
  std::string explain{};
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
  std::string csv{};
  std::string html{};
  bool no_lease = false;
  std::string wait{};
  std::string time_limit{};
  std::string grace{};
  std::string submit{};  // "slurm"
  Strings sbatch{};      // more words of sbatch's command line
  Strings element{};     // of a job array: file and index
};

// Throws: invalid_argument for flags that contradict each other, or for a wrong value.
TasksOptions to_tasks_options(const TasksFlags& flags);

// Checks the value of --submit, and that no flag is given of which the batch system would take no
// notice. Throws: invalid_argument.
void check_submit(const TasksFlags& flags);

}  // namespace muster
