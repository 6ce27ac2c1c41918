// At the end of a job the launcher reads what its ranks left about themselves: their activity files
// become breakdown.json and a few lines of text, their events one trace file. No error here may
// change how the job ended, so each is only logged.
#include "muster/launch/job_activity.h"

#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/run_folder.h"
#include "muster/launch/straggler_table.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/breakdown.h"
#include "muster/trace/merge_trace.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

std::string clocks_text(const MergedTrace& trace) {
  if (trace.uncertainty_ns < 0)
    return "; clocks of several hosts were not compared";
  if (trace.uncertainty_ns == 0)
    return "";
  return cat("; clocks of other hosts to within ",
             format_duration(std::chrono::nanoseconds(trace.uncertainty_ns)));
}

// Says what the trace does not have.
std::string missing_text(const MergedTrace& trace) {
  const auto missing = trace.world_size - std::ssize(trace.ranks);
  std::string text;
  if (missing > 0)
    text += cat("; ", plural(missing, "rank"), " of other hosts have their events there");
  if (trace.lost > 0)
    text += cat("; ", trace.lost, " events did not fit");
  return text;
}

// The result of the merge, as one line for people.
std::string trace_text(const MergedTrace& trace) {
  return cat(trace.path,
             ", ",
             trace.events,
             " events of ",
             plural(trace.ranks.size(), "rank"),
             clocks_text(trace),
             missing_text(trace),
             "; open it at ui.perfetto.dev");
}

// Whether the trace's events of rank 0 are in this folder too: then the first host of the job
// shares the folder and merges all events.
bool is_first_hosts_to_merge(const std::string& run_dir) {
  std::error_code error;
  const auto attempts = paths_in(std::filesystem::path(run_dir) / "trace");
  return any_of(attempts, [&](const std::filesystem::path& attempt) {
    return std::filesystem::exists(attempt / "0", error);
  });
}

// Merges the events of all ranks whose files are here, and says where.
void tell_trace(const JobFacts& job, bool first_host) {
  if (!first_host && is_first_hosts_to_merge(job.work_dir))
    return;
  const auto trace = merge_trace(job.work_dir);
  if (!trace)
    return;
  log_info("trace: ", trace_text(*trace));
}

// Writes and says where the time went, of the ranks that this host's folder has.
void tell_breakdown(const JobFacts& job, int attempt, bool quiet) {
  const auto breakdown = breakdown_of(readable_activity(job.work_dir, attempt), {});
  if (!breakdown)
    return;
  write_file(job.work_dir + "/breakdown.json", breakdown->json());
  if (quiet)
    return;
  for (const auto& line : breakdown->lines())
    log_info(line);
  for (const auto& line : split(straggler_table(*breakdown), '\n')) {
    if (!line.empty())
      log_info(line);
  }
}

}  // namespace

void keep_earlier_trace(const std::string& work_dir) {
  try {
    if (const auto trace = merge_earlier_trace(work_dir))
      log_info("trace of an earlier launch here, which was killed: ", trace_text(*trace));
  } catch (const std::exception& error) {
    const auto aside = cat(work_dir, "/trace.", make_uuid());
    log_error(error.what(), "; the events of an earlier launch are moved to '", aside, "'");
    std::error_code failed;
    std::filesystem::rename(work_dir + "/trace", aside, failed);
  }
}

// The run may still go on, so its events stay where they are.
std::string merge_left_trace(const std::string& run_dir) {
  const auto trace = copy_trace(run_dir);
  return trace ? trace_text(*trace) : "";
}

void tell_activity(const JobFacts& job, int attempt, bool quiet, bool first_host) {
  try {
    if (first_host)
      tell_breakdown(job, attempt, quiet);
  } catch (const std::exception& error) {
    log_error(error.what());
  }
  try {
    tell_trace(job, first_host);
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

}  // namespace muster
