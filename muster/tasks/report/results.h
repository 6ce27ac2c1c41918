// The results of the tasks, for programs (JSON) and for spreadsheets (CSV). For the command when a
// run has ended, and at any moment of it. Pure.
#pragma once

#include <string>

#include "muster/tasks/task.h"

namespace muster {

// In both, `results[i]` is of tasks[i]. Throws: invalid_argument when there are not as many.

// {"schema": "muster.tasks/1", "tasks": [{"name", "parameters", "argv", "state", "reason",
// "result", "attempts": [{"attempt", "host", "devices", "gpus", "gpu_fraction", "cpus", "began",
// "ended", "exit_code", "signal", "timed_out", "log"}]}]}; a task a line. Units: seconds since the
// run began.
std::string results_json(const Tasks& tasks, const TaskResults& results);

// RFC 4180: a row a task, with every parameter and every field of any task's last JSON line as a
// column. A field that has the name of another column is "result.<name>", a parameter
// "parameter.<name>".
std::string results_csv(const Tasks& tasks, const TaskResults& results);

}  // namespace muster
