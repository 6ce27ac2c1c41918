// The two kinds of runs as a page for people, and as JSON for programs. For report.cc; what is read
// of a run's folder is in job_run.h and tasks_report.h. Pure.
#pragma once

#include <string>

#include "muster/report/job_run.h"
#include "muster/report/tasks_report.h"

namespace muster {

// Everything that job_run.h reads.
std::string job_page(const JobRun& run);

// Schema "muster.report/1", kind "job". Points of metrics are [step, mean, least, most, values].
std::string job_report_json(const JobRun& run);

// The tasks' results, the best of them, and which device ran what and when.
std::string tasks_page(const TasksReport& run);

// Schema "muster.report/1", kind "tasks"; tasks as results_json has them.
std::string tasks_report_json(const TasksReport& run);

}  // namespace muster
