// What the page of a run of tasks shows, for programs. Pure.
#pragma once

#include <string>

#include "muster/report/tasks_report.h"

namespace muster {

// Schema "muster.report/1", kind "tasks"; tasks as results_json has them.
std::string tasks_report_json(const TasksReport& run);

}  // namespace muster
