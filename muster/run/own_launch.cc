// Only the environment's word is sought here: check_launch() and the planner say what is wrong with
// a value, as they do for the flags of `muster run`.
#include "muster/run/own_launch.h"

#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/error.h"
#include "muster/base/failure_policy.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"
#include "muster/comm/init.h"
#include "muster/launch/check_launch.h"
#include "muster/launch/time_limit.h"
#include "muster/run/own_program.h"
#include "muster/run/run_calls.h"

namespace muster {

namespace {

std::optional<int> nproc_of(const RunOptions& options) {
  const auto told = get_env_count("MUSTER_NPROC");
  return told ? told : options.nproc_per_node;
}

Request request_of(const RunOptions& options) {
  Request request;
  request.nproc_per_node = nproc_of(options);
  request.cpu_only = options.cpu_only;
  request.gpu_only = options.gpu_only;
  request.gpus = get_env("MUSTER_GPUS").value_or(options.gpus);
  request.gpus_per_rank = options.gpus_per_rank;
  request.policy = get_env("MUSTER_POLICY").value_or(options.policy);
  request.map = options.map;
  request.choose = options.choose;
  request.scores = options.scores;
  request.rank_memory_bytes = options.rank_memory;
  request.mesh = options.mesh;
  request.global_batch = options.global_batch;
  request.numa_binding = options.numa_binding;
  request.surplus = surplus_of(options);
  request.visibility = options.visibility;
  return request;
}

// What ends the job, and what happens then.
void set_limits(const RunOptions& options, LaunchOptions& launch) {
  launch.shutdown_timeout = options.shutdown_timeout;
  launch.time_limit = parse_time_limit(options.timeout, "--timeout", launch.shutdown_timeout);
  launch.limit_has_begun = options.timeout.starts_with("slurm");
  launch.stopped_timeout = options.stopped_timeout;
  launch.stop_signals = options.signals_to_handle;
  const bool told = get_env(kFailurePolicyVariable).has_value();
  set_failure_policy(
      told ? failure_policy_from_environment() : options.on_failure, options.max_restarts, launch);
  collective_timeout_of(options);  // a wrong variable is told by its own name
  const bool variable_wins = get_env("MUSTER_COLLECTIVE_TIMEOUT").has_value();
  set_collective_timeout(variable_wins ? std::nullopt : options.collective_timeout, launch);
}

// What the ranks are told, what is shown, and where it goes.
void set_output(const RunOptions& options, LaunchOptions& launch) {
  if (!options.trace.empty() && !get_env("MUSTER_TRACE"))
    launch.extra_env["MUSTER_TRACE"] = options.trace;
  launch.work_dir = options.workdir;
  launch.run_dir = options.run_dir;
  launch.log_dir = options.log_dir;
  launch.redirects = options.redirects;
  launch.tee = options.tee;
  launch.local_ranks_filter = options.local_ranks_filter;
  launch.line_prefix = options.log_line_prefix_template;
  launch.dry_run = options.dry_run;
  launch.json = options.json;
  launch.quiet = options.quiet;
  launch.collapse = !options.no_collapse;
}

}  // namespace

Surplus surplus_of(const RunOptions& options) {
  const auto told = get_env("MUSTER_SURPLUS");
  return told ? parse_surplus(*told) : options.surplus;
}

bool wants_backtrace(const RunOptions& options) {
  const auto told = get_env_int("MUSTER_BACKTRACE");
  if (!told)
    return options.backtrace;
  if (*told != 0 && *told != 1) {
    throw invalid_argument("MUSTER_BACKTRACE: expected 0 or 1, got ", *told, "; correct it");
  }
  return *told == 1;
}

milliseconds collective_timeout_of(const RunOptions& options) {
  const auto given = options.collective_timeout.value_or(InitOptions{}.timeout);
  if (given <= milliseconds(0))
    throw bad_flag("--collective-timeout", "a time above 0", format_duration(given));
  return collective_timeout(given);
}

// The file of this program is executed, and not what its name belongs to by then.
LaunchOptions own_launch_options(const RunOptions& options, int argc, char** argv) {
  wants_backtrace(options);  // only the ranks use it; a wrong value is said here, once
  LaunchOptions launch;
  launch.argv = own_command_line(argc, argv);
  launch.program = kOwnProgram;
  launch.request = request_of(options);
  launch.inventory = get_env("MUSTER_INVENTORY").value_or(options.inventory);
  launch.cpu_slots = options.cpu_slots;
  launch.plan = options.plan;
  launch.wait = options.wait;
  launch.lease = !options.no_lease;
  launch.looks_at_gpus = !options.no_gpu_check;
  launch.extra_env = options.env;
  set_limits(options, launch);
  set_output(options, launch);
  check_launch(launch);
  launch.extra_env[kRunCallsVariable] = run_calls_for_children();
  return launch;
}

}  // namespace muster
