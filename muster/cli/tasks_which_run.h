// Which run of tasks the command line means: a new one, of a spec or a sweep, or one that goes on in its
// folder. For tasks_run.cc and tasks_show.cc; knows nothing of machines.
#pragma once

#include <string>

#include "muster/cli/tasks_run.h"
#include "muster/placement/plan.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/task_file.h"

namespace muster {

struct TasksRun {
  std::string run_dir = {};  // absolute; empty: a new one is to be made
  bool is_new = true;
  TaskFile file = {};
  std::string spec_text = {};  // what the spec file says; empty: not given now
  JournalState before = {};

  // Of the command line, or what the run began with; empty: neither said it.
  std::string setting(const char* name) const;
};

// What a task's ranks see of its GPUs.
Visibility visibility_of(const TasksRun& run);

// Changes to the folder that a run began in, if it goes on. Throws: Error when the flags contradict each
// other, the tasks, or what the run's folder holds.
TasksRun which_run(const TasksFlags& flags);

// Where a run has its folder that was given none: runs/<id>.
void choose_run_folder(TasksRun& run, const std::string& run_id);

// The same, makes it, and points runs/latest to it. Throws: invalid_argument when it cannot, or nothing can
// be written there.
void begin_run_folder(TasksRun& run, const std::string& run_id);

}  // namespace muster
