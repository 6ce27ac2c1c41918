// Why a task of a schedule is where it is, in words. For --explain.
#pragma once

#include <cstddef>
#include <string>

#include "muster/tasks/schedule/schedule.h"

namespace muster {

// Several lines: what the task waits for, and who has that.
std::string explain(const TaskSchedule& schedule, size_t task, double now);

}  // namespace muster
