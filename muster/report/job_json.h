// What a job's page shows, for programs. Pure.
#pragma once

#include <string>

#include "muster/report/job_run.h"

namespace muster {

// Schema "muster.report/1", kind "job". Points of metrics are [step, mean, least, most, values].
std::string job_report_json(const JobRun& run);

}  // namespace muster
