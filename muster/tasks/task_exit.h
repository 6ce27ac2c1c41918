// How an attempt ended, as its result has it, and why that is a failure. For the runner.
#pragma once

#include <string>

#include "muster/tasks/hosts/task_host.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/task.h"

namespace muster {

// Sets how the attempt ended. The launcher of a task's ranks ends with 128 + n where signal n ended
// the first that failed: that is the task's signal.
void take_exit(const Task& task, const TaskEnd& end, TaskAttempt& attempt);

// "exit code 3", "killed by SIGSEGV, core dumped", "its time limit of 2h is over".
std::string describe_failure(const Task& task, const TaskAttempt& attempt, const TaskEnd& end);

// How the run stands when a task's start ends.
struct RunStanding {
  bool interrupted = false;  // the run has asked the task to end
  bool ending = false;       // every task is ended
  bool draining = false;     // nothing more starts
  std::string why_ended{};   // of `ending`
  bool allow_nan = false;
  int failures = 0;  // starts of the task that failed before
};

// Judges what the end of the last attempt means for its task: sets the state and the reason.
AttemptEnd judge_end(const Task& task,
                     const TaskEnd& end,
                     const RunStanding& run,
                     TaskResult& result);

}  // namespace muster
