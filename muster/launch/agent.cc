#include "muster/launch/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/patient_write.h"
#include "muster/device/probe.h"
#include "muster/device/read_inventory.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/job_setup.h"
#include "muster/launch/worker_group.h"
#include "muster/launch/worker_spec.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"
#include "muster/placement/planner.h"
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

Inventory discover(const LaunchOptions& options) {
  if (!options.inventory.empty()) return read_inventory(options.inventory);
  ProbeOptions probe;
  probe.cpu_slots = options.cpu_slots;
  probe.gpus = !options.request.cpu_only;
  return probe_this_machine(probe);
}

Plan place(const Inventory& inventory, const LaunchOptions& options) {
  Request request = options.request;
  if (options.virtual_local_rank) request.visibility = Visibility::own;
  const char* inherited = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!request.visible_mask && !inventory.simulated && inherited != nullptr) request.visible_mask = inherited;
  Plan plan = muster::plan(inventory, request);
  if (!options.dry_run && inventory.hosts.size() > 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("launch: expected an inventory of one host, got ", inventory.hosts.size(),
                    "; this version starts ranks on one host (`muster plan` takes any number)"));
  }
  return plan;
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
  const WorkerExit* first = first_failure(result.exits);
  if (first == nullptr) {
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
  return first->shell_code();
}

bool should_restart(const GroupResult& result, ProcessSet& processes, const LaunchOptions& options,
                    int attempt) {
  const WorkerExit* first = first_failure(result.exits);
  if (first == nullptr || result.stopped_by != 0 || attempt >= options.max_restarts) return false;
  if (const int signal = processes.stop_requested(); signal != 0) {  // it came when all ranks had ended
    log(LogLevel::info, cat("stopped by ", signal_name(signal), "; not starting again"));
    return false;
  }
  log(LogLevel::warn,
      cat("rank ", first->rank, " failed: ", first->cause, "; starting all ranks again (restart ",
          attempt + 1, " of ", options.max_restarts, ")"));
  return true;
}

}  // namespace

int exit_code_of(const Error& error) {
  if (const auto* spawn = dynamic_cast<const SpawnError*>(&error)) return spawn->exit_code();
  return error.code() == ErrorCode::invalid_argument ? 2 : 1;
}

int run(const LaunchOptions& options) {
  check(options);
  const Inventory inventory = discover(options);
  const Plan plan = place(inventory, options);
  if (options.dry_run) {
    show_plan(plan, options, STDOUT_FILENO);
    return 0;
  }
  ProcessSet processes({.stop_signals = options.stop_signals});
  const JobSetup job(options, plan, inventory.simulated ? usable_cores() : inventory.hosts.at(0).num_cores);
  show_plan(plan, options, STDERR_FILENO);

  for (int attempt = 0;; ++attempt) {
    const std::vector<WorkerSpec> specs = make_worker_specs(plan, options, job.facts(), attempt);
    const GroupResult result =
        run_workers(processes, specs, job.inherited_fds(), {.shutdown_timeout = options.shutdown_timeout});
    if (should_restart(result, processes, options, attempt)) continue;
    const int exit_code = report(result, job.facts(), options, attempt);
    job.remove_empty_folders();
    return exit_code;
  }
}

}  // namespace muster
