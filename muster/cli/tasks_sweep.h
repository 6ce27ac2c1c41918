// `muster tasks --sweep … -- CMD`: the flags of a sweep to its tasks. For tasks_options.cc.
#pragma once

#include <string>

#include "muster/cli/tasks_options.h"
#include "muster/tasks/spec/sweep.h"

namespace muster {

// Refuses flags that say of a sweep's tasks what a file says of its own, if there is no sweep.
// Throws: invalid_argument.
void check_sweep_flags(const TasksFlags& flags);

// Throws: invalid_argument.
SweepOptions sweep_of(const TasksFlags& flags);

// "--need-gpus 3 --need-cpus 2"; empty: the tasks are of no sweep, or it has none of these.
std::string need_flags_text(const TasksFlags& flags);

}  // namespace muster
