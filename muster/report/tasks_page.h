// The page of a run of tasks: what came of them, the best of them, and which device ran what and
// when. Pure.
#pragma once

#include <string>

#include "muster/report/tasks_report.h"

namespace muster {

std::string tasks_page(const TasksReport& run);

}  // namespace muster
