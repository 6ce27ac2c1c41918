// All that a job's run folder tells, as one value: what `muster report` shows and prints as JSON.
// This part reads; pages.h makes the page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "muster/base/strings.h"
#include "muster/launch/run_record.h"
#include "muster/placement/plan.h"
#include "muster/report/metrics_file.h"
#include "muster/trace/read_activity.h"

namespace muster {

struct JobFailure {
  std::string time{};
  int attempt = 0;
  std::optional<int> exit_code{};
  std::string fault{};
  RankExits exits{};   // the first to fail before the others
  std::string card{};  // what the launcher printed
};

struct JobRun {
  std::string folder{};  // absolute
  RunRecord record{};    // without launches if the folder has no record
  std::optional<Plan> plan{};
  std::optional<JobFailure> failure{};
  MetricsFile metrics{};
  bool goes_on = false;   // a launcher of this host runs it
  int64_t now_ns = 0;     // by this host's monotonic clock
  ActivityViews ranks{};  // of the last attempt, by rank
  Strings divergences{};  // of ranks from the others' calls, a sentence each
  Strings problems{};     // what could not be read, a line each

  const LaunchRecord* last_launch() const {
    return record.launches.empty() ? nullptr : &record.launches.back();
  }
};

// Whether the folder holds anything that a job's launcher or a training program writes.
bool is_job_run(const std::string& folder);

// What failure.json says, of a run in that folder. Throws: invalid_argument.
JobFailure job_failure_from(const std::string& text, const std::string& folder);

// A part that cannot be read is among the problems.
JobRun read_job_run(const std::string& folder);

// "done", "failed", "stopped", "time limit", "running", "killed" (its launcher has not told its
// end), or "unknown".
std::string outcome_of(const JobRun& run);

// Returns what the run is called: its program's name, or the folder's.
std::string title_of(const JobRun& run);

}  // namespace muster
