// launch() finds the machine, places the ranks and leases their GPUs; LocalJob is the rest: its
// constructor sets up all that lasts as long as the job, and run() makes one attempt after the
// other until one of them is the last.
#include "muster/launch/launch.h"

#include <unistd.h>

#include <optional>
#include <ranges>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/units.h"
#include "muster/device/cores.h"
#include "muster/device/numbers.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/gpu_watch.h"
#include "muster/launch/job_activity.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/job_start.h"
#include "muster/launch/local_ranks.h"
#include "muster/launch/rank_spec.h"
#include "muster/launch/replacement.h"
#include "muster/launch/restart.h"
#include "muster/launch/run_recorder.h"
#include "muster/supervise/child.h"
#include "muster/supervise/kept_requests.h"
#include "muster/supervise/process_set.h"
#include "muster/trace/read_activity.h"

namespace muster {

namespace {

// Says how the job ended, and returns its exit code.
int report(const GroupResult& result,
           const BadGpus& bad,
           const JobFacts& job,
           const LaunchOptions& options,
           int attempt) {
  const char* const ranks =
      result.all_gone ? "every rank has ended" : "not every rank could be ended";
  if (result.timed_out) {
    log_error("stopped: the time limit of ",
              format_duration(*options.time_limit),
              " (--timeout) is over; ",
              ranks);
  }
  report_failure(result.exits, job, attempt, options.max_restarts, result.fault, bad);
  if (!result.fault.empty())
    return kFaultExitCode;
  const RankExit* first = first_failure(result.exits);
  if (first != nullptr && options.on_job_failed)
    options.on_job_failed(*first);
  if (result.timed_out)
    return kTimeLimitExitCode;
  if (first != nullptr)
    return first->shell_code();
  if (result.stopped_by == 0)
    return 0;
  log_info("stopped by ", signal_name(result.stopped_by), "; ", ranks);
  return 128 + result.stopped_by;
}

// Whether the job ended well without those of its ranks that failed, as it was allowed to.
bool has_survived(const GroupResult& result, const LaunchOptions& options) {
  const bool ended_by_itself = result.fault.empty() && !result.timed_out && result.stopped_by == 0;
  return options.failure_policy == FailurePolicy::go_on && ended_by_itself &&
         !all_of(result.exits, &RankExit::failed);
}

// Says which ranks a job that has ended well has lost.
void tell_lost_ranks(const GroupResult& result) {
  Strings lost = mapped(
      result.exits | std::views::filter(&RankExit::failed),
      [&](const RankExit& exit) { return cat("rank ", exit.rank, " (", describe_end(exit), ")"); });
  if (lost.empty())
    return;
  log_warning("the job has ended well without ",
              lost.size(),
              " of its ",
              plural(result.exits.size(), "rank"),
              ", which were lost: ",
              join(lost, ", "));
}

// The ranks go on without the GPUs that have gone bad. False, and says so, where others cannot be
// had.
bool leave_bad_gpus(const BadGpus& bad,
                    LeasedPlan& leased,
                    JobSetup& job,
                    const LaunchOptions& options) {
  job.use_plan(leased.plan, {});  // lets the leases go
  try {
    leased = place_without(reasons_of(bad), int_size(leased.plan.ranks), options);
  } catch (const Error& error) {
    log_error(describe(bad), "; not starting again: ", error.message());
    return false;
  }
  log_warning(describe(bad), "; muster sets it aside and gives the ranks others");
  job.use_plan(leased.plan, std::move(leased.leases));
  show_plan(leased.plan, options, STDERR_FILENO);
  return true;
}

// Folders that nothing was written to go however the job ends, by an error before its first rank
// too.
struct UnusedFoldersRemoved {
  const JobSetup& job;
  ~UnusedFoldersRemoved() { job.remove_unused_folders(); }
};

class LocalJob {
 public:
  // `began`: when launch() was called. A time limit may count from then.
  LocalJob(const LaunchOptions& options,
           const Inventory& inventory,
           LeasedPlan leased,
           TimePoint began)
      : options_(options),
        leased_(std::move(leased)),
        processes_({.stop_signals = options.stop_signals}),
        job_(options,
             RankRendezvous({.master_port = options.master_port}),
             inventory.simulated ? usable_cores() : inventory.hosts.at(0).num_cores),
        restarts_(options.max_restarts) {
    keep_copies_of_launch(job_.facts().work_dir, job_.facts().launch);
    job_.use_plan(leased_.plan, std::move(leased_.leases));
    registration_.emplace(job_note(options, leased_.plan, job_.facts()));
    if (options.looks_at_gpus && !inventory.simulated)
      gpus_.emplace(inventory.hosts.at(0));
    record_.emplace(options, job_.facts(), inventory.hosts.at(0).name, &inventory);
    show_plan(leased_.plan, options, STDERR_FILENO);
    if (options.time_limit)
      time_limit_ = (options.limit_has_begun ? began : Clock::now()) + *options.time_limit;
    if (options.failure_policy == FailurePolicy::replace) {
      const GpuWatch* const gpus = gpus_ ? &*gpus_ : nullptr;
      in_place_.emplace(leased_.plan, options, job_, restarts_, *record_, attempt_, gpus);
    }
  }

  // Returns the exit code.
  int run() {
    for (;; ++attempt_) {
      GroupResult result = run_attempt();
      if (const auto exit_code = end_well(result))
        return *exit_code;
      const bool failed = first_failure(result.exits) != nullptr;
      const auto bad = failed && gpus_ ? gpus_->look(leased_.plan, 0) : BadGpus();
      if (!starts_again(result, bad))
        return end_badly(result, bad);
    }
  }

 private:
  // Blocking: until every rank of the attempt has ended.
  GroupResult run_attempt() {
    job_.count_restarts(attempt_);
    const RankSpecs specs = make_rank_specs(leased_.plan, options_, job_.facts(), attempt_);
    attempt_began_ = Clock::now();
    record_->begin_attempt(attempt_);
    restarts_.begin();
    const GroupRules rules{.shutdown_timeout = options_.shutdown_timeout,
                           .until = time_limit_,
                           .master_port = watched_port(options_, job_.facts()),
                           .stopped_for = options_.stopped_timeout,
                           .failure_policy = options_.failure_policy,
                           .is_again = attempt_ > 0,
                           .replacing = in_place_ ? &in_place_->rules() : nullptr};
    GroupResult result = run_local_ranks(processes_, specs, job_.inherited_fds(), rules);
    record_->end_attempt(result.exits, result.fault);
    if (in_place_)
      in_place_->explain(result.exits);
    return result;
  }

  // Returns the exit code of a job that no failure has ended.
  std::optional<int> end_well(const GroupResult& result) {
    if (has_survived(result, options_)) {
      tell_activity(job_.facts(), attempt_, options_.quiet);
      tell_lost_ranks(result);
      return record_->finish(0, outcome_of(0, result.exits));
    }
    if (result.fault.empty() && have_stopped(result.exits)) {
      tell_activity(job_.facts(), attempt_, options_.quiet);
      log_info("all ranks have stopped, as they were asked to (exit code ",
               kStoppedExitCode,
               "); start the job again to resume");
      return record_->finish(kStoppedExitCode, outcome_of(kStoppedExitCode, result.exits));
    }
    return std::nullopt;
  }

  // Returns after the pause before the next attempt, on other GPUs if some are bad. False: there is
  // no next one; a time limit that was over first is noted in `result`.
  bool starts_again(GroupResult& result, const BadGpus& bad) {
    if (!restarts_.wanted(result))
      return false;
    if (!bad.empty()) {
      if (!leave_bad_gpus(bad, leased_, job_, options_))
        return false;
      registration_.emplace(job_note(options_, leased_.plan, job_.facts()));
    }
    return restarts_.wait(result, processes_, attempt_began_, time_limit_);
  }

  // Says what each rank did, writes the report and returns the exit code.
  int end_badly(const GroupResult& result, const BadGpus& bad) {
    tell_activity(job_.facts(), attempt_, options_.quiet);
    record_->name_source_lines();  // the report has them of all attempts
    const int exit_code = report(result, bad, job_.facts(), options_, attempt_);
    return record_->finish(exit_code, outcome_of(exit_code, result.exits));
  }

  const LaunchOptions& options_;
  LeasedPlan leased_;
  ProcessSet processes_;
  JobSetup job_;
  const UnusedFoldersRemoved at_end_{job_};
  std::optional<JobRegistration> registration_;
  std::optional<GpuWatch> gpus_;
  std::optional<RunRecorder> record_;
  OptionalTime time_limit_;
  Restarts restarts_;
  int attempt_ = 0;  // replacements in place count too
  TimePoint attempt_began_;
  std::optional<InPlaceRestarts> in_place_;
};

// Throws: SpawnError for a program that is not there, invalid_argument for such a folder and for
// one with somebody else's files: all before GPUs are waited for.
void check_what_starts(const LaunchOptions& options) {
  if (!options.dry_run) {
    program_paths(options);
    check_folders(options);
  }
  if (!options.dry_run || options.inventory.empty())
    check_work_dir(options.work_dir);
}

}  // namespace

// A program that cannot be found or executed has a shell's exit codes.
int exit_code_of(const Error& error) {
  if (const auto* spawn = dynamic_cast<const SpawnError*>(&error))
    return spawn->exit_code();
  return error.code() == ErrorCode::invalid_argument ? 2 : 1;
}

// Errors that need no look at the machine are found first, then those that the plan shows;
// the run's folder is made only when all of that is right.
int launch(const LaunchOptions& given) {
  const KeptRequests kept;
  const auto began = Clock::now();
  LaunchOptions options = given;
  if (options.run_id.empty())
    options.run_id = make_uuid();
  check_launch(options);
  check_sizes_have_ranks(options.request);
  check_what_starts(options);
  const Inventory inventory = discover(options);
  LeasedPlan leased = place_and_lease(inventory, options);
  const auto unknown = unknown_local_ranks(leased.plan, options);
  if (!unknown.empty())
    throw invalid_argument(unknown);
  if (options.dry_run) {
    show_dry_run(inventory, leased.plan, options);
    return 0;
  }
  return LocalJob(options, inventory, std::move(leased), began).run();
}

}  // namespace muster
