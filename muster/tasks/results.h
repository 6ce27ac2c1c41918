// What became of the tasks, for people (a table), for programs (JSON) and for spreadsheets (CSV): so that a
// sweep ends in a table of accuracies. For the command when a run has ended, and at any moment of it. Pure.
#pragma once

#include <string>
#include <vector>

#include "muster/tasks/task.h"

namespace muster {

// Of all three, `results[i]` is of tasks[i]; Throws: invalid_argument when there are not as many.

// A line a task: its name, parameters, state, attempts, devices and time of the last attempt, then the fields
// of the last JSON line that it printed. Numbers are set right; columns of numbers show as many digits as
// tell them apart, up to six. What is too wide is cut, and the fields beyond twelve are left out with a line
// that says so.
std::string results_table(const std::vector<Task>& tasks, const std::vector<TaskResult>& results);

// {"schema": "muster.tasks/1", "tasks": [{"name", "parameters", "argv", "state", "reason", "result",
// "attempts": [{"attempt", "host", "devices", "gpus", "gpu_fraction", "cpus", "began", "ended", "exit_code",
// "signal", "timed_out", "log"}]}]}; a task a line. Units: seconds since the run began.
std::string results_json(const std::vector<Task>& tasks, const std::vector<TaskResult>& results);

// RFC 4180: a row a task, with every parameter and every field of any task's last JSON line as a column. A
// field that has the name of another column is "result.<name>", a parameter "parameter.<name>".
std::string results_csv(const std::vector<Task>& tasks, const std::vector<TaskResult>& results);

}  // namespace muster
