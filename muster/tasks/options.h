// The options of a run of tasks: `muster tasks` fills them in, and run.h obeys them. Values, and
// one question that somebody else answers: which machines there are.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "muster/base/clock.h"
#include "muster/tasks/hosts/machines.h"
#include "muster/tasks/journal/settings.h"
#include "muster/tasks/report/result_files.h"
#include "muster/tasks/spec/sweep.h"

namespace muster {

struct TasksOptions {
  // The tasks: a spec file or a sweep. With neither, a run that goes on has those that it began
  // with.
  std::string spec{};
  std::optional<SweepOptions> sweep{};
  std::string sweep_needs{};  // a sweep's needs as they were said, for errors: "--need-gpus 3"

  std::string run_dir{};     // of a new run; empty: runs/<id>
  std::string resume{};      // the folder of a run that goes on; empty: a new one
  TasksSettings settings{};  // of one that goes on, those that are to change

  // The machines to use, by their settings; empty: this one alone. Not asked where an inventory is
  // told.
  std::function<TaskMachineList(const TasksSettings& settings)> find_machines{};

  // When nothing else is to do: for GPUs of other jobs (nothing: ever), for hosts that were lost,
  // and for processes or descriptors (a minute).
  OptionalDuration wait{};
  OptionalDuration time_limit{};          // of the whole run
  milliseconds shutdown_timeout{30'000};  // grace period between SIGTERM and SIGKILL

  bool dry_run = false;   // say what would start first, and stop
  std::string explain{};  // a task's name: say why it waits, and stop
  bool json = false;      // what is printed, as JSON
  bool quiet = false;     // only failures, and the results
  ResultFiles files{};
};

}  // namespace muster
