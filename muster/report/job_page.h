// The page of a job's run folder: everything that job_run.h reads, for people. Pure.
#pragma once

#include <string>

#include "muster/report/job_run.h"

namespace muster {

std::string job_page(const JobRun& run);

}  // namespace muster
