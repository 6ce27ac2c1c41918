// The sections of a job's page, for job_page.cc; a private header. Each is empty if the run has
// nothing of its kind. Pure.
#pragma once

#include <string>

#include "muster/report/job_run.h"

namespace muster {

std::string metrics_section(const JobRun& run);
std::string time_section(const JobRun& run);
std::string collectives_section(const JobRun& run);
std::string attempts_section(const JobRun& run);
std::string failure_section(const JobRun& run);
std::string placement_section(const JobRun& run);
std::string environment_section(const JobRun& run);

}  // namespace muster
