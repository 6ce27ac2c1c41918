#include "muster/launch/launch.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/device/cores.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/job_start.h"
#include "muster/launch/replacement.h"
#include "muster/launch/restart.h"
#include "muster/launch/run_recorder.h"
#include "muster/launch/worker_group.h"
#include "muster/launch/worker_spec.h"
#include "muster/supervise/child.h"
#include "muster/supervise/process_set.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

// Says how the job ended, and gives the exit code.
int report(const GroupResult& result,
           const std::vector<BadGpu>& bad,
           const JobFacts& job,
           const LaunchOptions& options,
           int attempt) {
  const char* const ranks =
      result.all_gone ? "every rank has ended" : "not every rank could be ended";
  if (result.timed_out) {
    log(LogLevel::error,
        cat("stopped: the time limit of ",
            format_duration(*options.time_limit),
            " (--timeout) is over; ",
            ranks));
  }
  report_failure(result.exits, job, attempt, options.max_restarts, result.fault, bad);
  if (!result.fault.empty())
    return kFaultExitCode;
  const WorkerExit* first = first_failure(result.exits);
  if (first != nullptr && options.on_failure)
    options.on_failure(*first);
  if (result.timed_out)
    return kTimeLimitExitCode;
  if (first != nullptr)
    return first->shell_code();
  if (result.stopped_by == 0)
    return 0;
  log(LogLevel::info, cat("stopped by ", signal_name(result.stopped_by), "; ", ranks));
  return 128 + result.stopped_by;
}

// Whether the job ended well without those of its ranks that failed, as it was allowed to.
bool has_survived(const GroupResult& result, const LaunchOptions& options) {
  const bool ended_by_itself = result.fault.empty() && !result.timed_out && result.stopped_by == 0;
  return options.goes_on && ended_by_itself &&
         std::any_of(result.exits.begin(), result.exits.end(), [](const WorkerExit& exit) {
           return !exit.failed();
         });
}

void tell_lost_ranks(const GroupResult& result) {
  std::vector<std::string> lost;
  for (const WorkerExit& exit : result.exits) {
    if (exit.failed())
      lost.push_back(cat("rank ", exit.rank, " (", describe_end(exit), ")"));
  }
  if (lost.empty())
    return;
  log(LogLevel::warn,
      cat("the job has ended well without ",
          lost.size(),
          " of its ",
          result.exits.size(),
          " ranks, which were lost: ",
          join(lost, ", ")));
}

// The ranks go on without the GPUs that have gone bad. False, and says so, where others cannot be
// had.
bool leave_bad_gpus(const std::vector<BadGpu>& bad,
                    LeasedPlan& leased,
                    JobSetup& job,
                    const LaunchOptions& options) {
  job.use_plan(leased.plan, {});  // lets the leases go
  try {
    leased = place_without(reasons_of(bad), static_cast<int>(leased.plan.ranks.size()), options);
  } catch (const Error& error) {
    log(LogLevel::error,
        cat(describe(bad), "; not starting again, as there are no others: ", error.message()));
    return false;
  }
  log(LogLevel::warn, cat(describe(bad), "; muster sets it aside and gives the ranks others"));
  job.use_plan(leased.plan, std::move(leased.leases));
  show_plan(leased.plan, options, STDERR_FILENO);
  return true;
}

// However the job ends, an error before its first rank included.
struct UnusedFoldersRemoved {
  const JobSetup& job;
  ~UnusedFoldersRemoved() { job.remove_unused_folders(); }
};

}  // namespace

int exit_code_of(const Error& error) {
  if (const auto* spawn = dynamic_cast<const SpawnError*>(&error))
    return spawn->exit_code();
  return error.code() == ErrorCode::invalid_argument ? 2 : 1;
}

int launch(const LaunchOptions& given) {
  const auto began = Clock::now();
  LaunchOptions options = given;
  if (options.run_id.empty())
    options.run_id = make_uuid();
  check_launch(options);
  const Inventory inventory = discover(options);
  LeasedPlan leased = place_and_lease(inventory, options);
  const Plan& plan = leased.plan;
  if (const std::string unknown = unknown_local_ranks(plan, options); !unknown.empty())
    throw Error(ErrorCode::invalid_argument, unknown);
  if (options.dry_run) {
    show_dry_run(inventory, plan, options);
    return 0;
  }
  ProcessSet processes({.stop_signals = options.stop_signals});
  JobSetup job(options,
               RankRendezvous({.master_port = options.master_port}),
               inventory.simulated ? usable_cores() : inventory.hosts.at(0).num_cores);
  const UnusedFoldersRemoved at_end{job};
  keep_copies_of_launch(job.facts().work_dir, job.facts().launch);
  job.use_plan(plan, std::move(leased.leases));
  std::optional<JobRegistration> registration(job_note(options, plan, job.facts()));
  std::optional<GpuWatch> gpus;
  if (options.looks_at_gpus && !inventory.simulated)
    gpus.emplace(inventory.hosts.at(0));
  RunRecorder record(options, job.facts(), inventory.hosts.at(0).name, &inventory);
  show_plan(plan, options, STDERR_FILENO);

  std::optional<Clock::time_point> time_limit;
  if (options.time_limit)
    time_limit = (options.limit_has_begun ? began : Clock::now()) + *options.time_limit;
  Restarts restarts(options.max_restarts);
  int attempt = 0;
  std::optional<InPlaceRestarts> in_place;
  if (options.replaces)
    in_place.emplace(plan, options, job, restarts, record, attempt, gpus ? &*gpus : nullptr);
  for (;; ++attempt) {
    job.count_restarts(attempt);
    const std::vector<WorkerSpec> specs = make_worker_specs(plan, options, job.facts(), attempt);
    const auto started = Clock::now();
    record.begin_attempt(attempt);
    restarts.begin();
    GroupResult result = run_workers(processes,
                                     specs,
                                     job.inherited_fds(),
                                     {.shutdown_timeout = options.shutdown_timeout,
                                      .until = time_limit,
                                      .master_port = watched_port(options, job.facts()),
                                      .stopped_for = options.stopped_timeout,
                                      .goes_on = options.goes_on,
                                      .replacing = in_place ? &in_place->rules() : nullptr});
    record.end_attempt(result.exits, result.fault);
    if (has_survived(result, options)) {
      tell_activity(job.facts(), attempt, options.quiet);
      tell_lost_ranks(result);
      return record.finish(0, outcome_of(0, result.exits));
    }
    if (result.fault.empty() && have_stopped(result.exits)) {
      tell_activity(job.facts(), attempt, options.quiet);
      log(LogLevel::info,
          cat("all ranks have stopped, as they were asked to (exit code ",
              kStoppedExitCode,
              "); start the job again to resume"));
      return record.finish(kStoppedExitCode, outcome_of(kStoppedExitCode, result.exits));
    }
    const bool failed = first_failure(result.exits) != nullptr;
    const auto bad = failed && gpus ? gpus->look(plan, 0) : std::vector<BadGpu>();
    if (restarts.wanted(result) && (bad.empty() || leave_bad_gpus(bad, leased, job, options))) {
      if (!bad.empty())
        registration.emplace(job_note(options, plan, job.facts()));
      if (restarts.wait(result, processes, started, time_limit))
        continue;
    }
    tell_activity(job.facts(), attempt, options.quiet);
    record.name_source_lines();  // the report has them of all attempts
    const int exit_code = report(result, bad, job.facts(), options, attempt);
    return record.finish(exit_code, outcome_of(exit_code, result.exits));
  }
}

}  // namespace muster
