// Which run of tasks is meant: a new one, of a spec or a sweep, or one that goes on in its folder.
// For run.cc; knows nothing of machines.
#pragma once

#include <string>

#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/settings.h"
#include "muster/tasks/journal/task_file.h"
#include "muster/tasks/options.h"

namespace muster {

struct TasksRun {
  std::string run_dir{};  // absolute; empty: none was given
  bool is_new = true;
  TaskFile file{};
  TasksSettings settings{};  // those asked for now, and else what it began with
  std::string spec_text{};   // what the spec file says; empty: not given now
  JournalState before{};

  // The spec file that the run began with; empty: a sweep.
  std::string spec() const;
};

// Finds the run. If it goes on, this process changes to the folder that it began in. Throws: Error
// when the options contradict what the run's folder holds.
TasksRun which_run(const TasksOptions& options);

// To be called before a new run's folder is made. Throws: invalid_argument where somebody else's
// files are in it, in the place of the run's tasks and logs.
void check_replaces_nothing(const TasksRun& run);

// Chooses the folder of a run that was given none: runs/<id>.
void choose_run_folder(TasksRun& run, const std::string& run_id);

// Chooses the folder too, makes it, and points runs/latest to it. Throws: invalid_argument when it
// cannot, or nothing can be written there.
void begin_run_folder(TasksRun& run, const std::string& run_id);

}  // namespace muster
