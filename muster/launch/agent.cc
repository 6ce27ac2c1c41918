#include "muster/launch/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/patient_write.h"
#include "muster/base/units.h"
#include "muster/device/cores.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_plan.h"
#include "muster/launch/job_registry.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/restart.h"
#include "muster/launch/worker_group.h"
#include "muster/launch/worker_spec.h"
#include "muster/placement/draw_svg.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/supervise/child.h"
#include "muster/supervise/process_set.h"

namespace muster {

namespace {

// Everything that can be found wrong without looking at the machine is found before anything is started.
void check(const LaunchOptions& options) {
  if (options.max_restarts < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("--max-restarts: expected 0 or more, got ", options.max_restarts));
  }
  stream_bits(options.redirects, 0, "--redirects");
  stream_bits(options.tee, 0, "--tee");
  if (!options.dry_run && options.argv.empty()) {
    throw Error(ErrorCode::invalid_argument, "launch: expected a program to run, got none");
  }
}

void show_plan(const Plan& plan, const LaunchOptions& options, int fd) {
  if (options.quiet && !options.dry_run) return;
  std::string text = options.json ? plan_to_json(plan) : plan_table(plan);
  if (plan.simulated && !options.dry_run && !options.json) {
    text += "the machine above is simulated: its ranks run on this one's CPU\n";
  }
  if (options.dry_run) return write_all(fd, text);
  write_within(fd, text, kReaderPatience);  // who does not read it must not keep the ranks from starting
}

JobNote note_of(const LaunchOptions& options, const Plan& plan, const JobFacts& job) {
  JobNote note{.id = job.run_id,
               .pid = ::getpid(),
               .program = join(options.argv, " "),
               .run_dir = job.run_dir,
               .num_ranks = static_cast<int>(plan.ranks.size()),
               .since_seconds = std::time(nullptr)};
  for (const RankPlan& rank : plan.ranks) {
    const std::string device = rank.device.id();
    if (std::find(note.devices.begin(), note.devices.end(), device) == note.devices.end())
      note.devices.push_back(device);
  }
  return note;
}

std::string time_text(std::chrono::system_clock::time_point at) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(at);
  std::tm local = {};
  ::localtime_r(&seconds, &local);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S%z", &local)};
}

// For a launcher that is a rank of another one (or a Kubernetes job's main process): tell it what failed, in
// the form that it expects.
void pass_error_on(const JobFacts& job, const WorkerExit& first, int attempt) {
  const auto ours = get_env("TORCHELASTIC_ERROR_FILE");
  if (!ours) return;
  try {
    write_all(Fd(::open(ours->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)).get(),
              read_file(cat(job.log_dir, "/", attempt, "/", first.rank, ".error.json")));
  } catch (const Error&) {
    return;  // the rank reported nothing, or there is nowhere to pass it on: the card has all we know
  }
}

bool write_report(const std::string& path, const std::string& text) {
  try {
    write_file(path, text);
    return true;
  } catch (const Error& error) {
    log(LogLevel::error, error.message());
    return false;
  }
}

// Writes failure.json, prints the failure card, and gives the exit code, which holds whatever becomes of the
// other two.
int report(const GroupResult& result, const JobFacts& job, const LaunchOptions& options, int attempt) {
  if (result.timed_out) {
    log(LogLevel::error, cat("stopped: the time limit of ", format_duration(*options.time_limit),
                             " (--timeout) is over; every rank has ended"));
  }
  const WorkerExit* first = first_failure(result.exits);
  if (first == nullptr) {
    if (result.timed_out) return kTimeLimitExitCode;
    if (result.stopped_by == 0) return 0;
    log(LogLevel::info, cat("stopped by ", signal_name(result.stopped_by), "; every rank has ended"));
    return 128 + result.stopped_by;
  }
  FailureContext context{.run_id = job.run_id,
                         .run_dir = job.run_dir,
                         .attempt = attempt,
                         .max_restarts = options.max_restarts,
                         .time = time_text(first->at)};
  context.has_report = write_report(cat(job.run_dir, "/failure.json"), failure_json(result.exits, context));
  pass_error_on(job, *first, attempt);
  write_within(STDERR_FILENO, failure_card(result.exits, context), kReaderPatience);
  return result.timed_out ? kTimeLimitExitCode : first->shell_code();
}

}  // namespace

int exit_code_of(const Error& error) {
  if (const auto* spawn = dynamic_cast<const SpawnError*>(&error)) return spawn->exit_code();
  return error.code() == ErrorCode::invalid_argument ? 2 : 1;
}

int run(const LaunchOptions& given) {
  LaunchOptions options = given;
  if (options.run_id.empty()) options.run_id = make_uuid();
  check(options);
  const Inventory inventory = discover(options);
  LeasedPlan leased = place_and_lease(inventory, options);
  const Plan& plan = leased.plan;
  if (options.dry_run) {
    show_plan(plan, options, STDOUT_FILENO);
    if (!options.svg.empty()) write_file(options.svg, draw_svg(inventory, &plan));
    return 0;
  }
  ProcessSet processes({.stop_signals = options.stop_signals});
  const JobSetup job(options, plan, inventory.simulated ? usable_cores() : inventory.hosts.at(0).num_cores,
                     std::move(leased.leases));
  const JobRegistration registration(note_of(options, plan, job.facts()));
  show_plan(plan, options, STDERR_FILENO);

  std::optional<Clock::time_point> time_limit;
  if (options.time_limit) time_limit = Clock::now() + *options.time_limit;
  Restarts restarts(options.max_restarts);
  for (int attempt = 0;; ++attempt) {
    const std::vector<WorkerSpec> specs = make_worker_specs(plan, options, job.facts(), attempt);
    const auto started = Clock::now();
    GroupResult result = run_workers(processes, specs, job.inherited_fds(),
                                     {.shutdown_timeout = options.shutdown_timeout, .until = time_limit});
    if (restarts.wanted(result) && restarts.wait(result, processes, started, time_limit)) continue;
    const int exit_code = report(result, job.facts(), options, attempt);
    job.remove_empty_folders();
    return exit_code;
  }
}

}  // namespace muster
