// A failure is told three times: to programs in failure.json, to a launcher around this one in its
// error file, and to people on standard error. The card comes last, as it says whether there is a
// failure.json.
#include "muster/launch/job_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/patient_write.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/full_disk.h"
#include "muster/launch/run_recorder.h"

namespace muster {

namespace {

std::string time_text(WallTime at) {
  const std::time_t seconds = WallClock::to_time_t(at);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S%z", &local)};
}

// This launcher may be a rank of another one, or a Kubernetes job's main process. That one is told
// what failed in the form that it expects.
void pass_error_on(const JobFacts& job, const RankExit& first, int attempt) {
  const auto ours = get_env("TORCHELASTIC_ERROR_FILE");
  if (!ours)
    return;
  try {
    // A rank that reported nothing leaves the file as it is.
    const std::string error =
        read_file(cat(job.log_dir, "/", attempt, "/", first.rank, ".error.json"));
    const Fd file(::open(ours->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    write_all(file.get(), error);
  } catch (const Error&) {
    return;  // the rank reported nothing, or its report goes nowhere: the card has all we know
  }
}

// Whether the report could be written. Where it could not, that is logged.
bool write_report(const std::string& path, const std::string& text) {
  try {
    write_file(path, text);
    return true;
  } catch (const Error& error) {
    log_error(error.message());
    return false;
  }
}

// The attempts of this job that its folder's record has; none where that cannot be read.
std::vector<AttemptRecord> attempts_until(const JobFacts& job, int attempt) {
  try {
    const auto record = read_run_record(job.run_dir);
    if (!record || record->launches.empty())
      return {};
    const LaunchRecord& newest = record->launches.back();
    if (newest.run_id != job.run_id)
      return {};
    auto attempts = newest.attempts;
    std::erase_if(attempts, [&](const AttemptRecord& other) { return other.attempt > attempt; });
    return attempts;
  } catch (const Error& error) {
    log_warning(error.message());
    return {};
  }
}

// Says the errors of ranks that failed when the job was stopped, for which there is no card.
void tell_errors(const RankExits& exits) {
  for (const RankExit& exit : exits) {
    if (exit.failed() && !exit.message.empty())
      log_error("rank ", exit.rank, ": ", exit.cause, ", ", exit.message);
  }
}

}  // namespace

void report_failure(const RankExits& exits,
                    const JobFacts& job,
                    int attempt,
                    int max_restarts,
                    const std::string& fault,
                    const BadGpus& bad_gpus) {
  const RankExit* first = first_failure(exits);
  if (first == nullptr && fault.empty())
    return tell_errors(exits);
  FailureContext context{.run_id = job.run_id,
                         .run_dir = job.run_dir,
                         .attempt = attempt,
                         .restarts = job.restart_count,
                         .max_restarts = max_restarts,
                         .time = time_text(fault.empty() ? first->at : WallClock::now()),
                         .full_disk = full_disk_line(job.run_dir, "the run's folder", "a rank"),
                         .divergences = compare_activity(job.work_dir, attempt),
                         .attempts = attempts_until(job, attempt),
                         .bad_gpus = bad_gpus,
                         .fault = fault};
  context.has_report =
      write_report(cat(job.run_dir, "/failure.json"), failure_json(exits, context));
  if (fault.empty())
    pass_error_on(job, *first, attempt);
  write_within(STDERR_FILENO, failure_card(exits, context), kReaderPatience);
}

}  // namespace muster
