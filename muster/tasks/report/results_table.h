// The results of the tasks, for people: a sweep ends in a table of accuracies. For the command when
// a run has ended, and at any moment of it. Pure.
#pragma once

#include <string>

#include "muster/tasks/task.h"

namespace muster {

// A line a task: its name, parameters, state, attempts, devices and time of the last attempt, then
// the fields of the last JSON line that it printed. Numbers are set right; columns of numbers show
// as many digits as tell them apart, up to six. What is too wide is cut, and the fields beyond
// twelve are left out with a line that says so. Throws: invalid_argument unless `results[i]` is of
// tasks[i].
std::string results_table(const Tasks& tasks, const TaskResults& results);

}  // namespace muster
