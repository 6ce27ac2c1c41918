// run() is one of two programs in one. Alone it is a launcher: it starts this program again, once
// for each rank, and supervises them. As a rank it finds its device, meets the other ranks, joins
// the group over all of them, and calls the user's function. Whatever fails is told to the launcher
// in the error file, and becomes the exit code.
#include "muster/run/run.h"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/env.h"
#include "muster/base/failure_policy.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/clock_alignment.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/comm/job_ranks.h"
#include "muster/data/own_loaders.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/given_gpus.h"
#include "muster/launch/launch.h"
#include "muster/run/error_file.h"
#include "muster/run/fatal_signal.h"
#include "muster/run/in_place.h"
#include "muster/run/launcher_wins.h"
#include "muster/run/local_place.h"
#include "muster/run/nvtx_ranges.h"
#include "muster/run/operator_trace.h"
#include "muster/run/own_launch.h"
#include "muster/run/own_program.h"
#include "muster/run/rank_device.h"
#include "muster/run/rank_software.h"
#include "muster/run/returned_early.h"
#include "muster/run/run_calls.h"
#include "muster/run/sampler_checks.h"
#include "muster/run/thrown_stack.h"
#include "muster/supervise/first_process.h"
#include "muster/trace/activity.h"
#include "muster/trace/stack_request.h"

namespace muster {

namespace {

using RankFunction = std::function<void(Context&)>;

// Makes this process the launcher. It starts itself again by fork and exec at once, so that the
// ranks inherit nothing of LibTorch's state (threads, CUDA).
int start_ranks(const RunOptions& options, int argc, char** argv) {
  try {
    const LaunchOptions launch_options = own_launch_options(options, argc, argv);
    if (launch_options.inventory.empty())
      keep_to_given_gpus();
    return launch(launch_options);
  } catch (const Error& error) {
    log_error(error.message());
    return exit_code_of(error);
  }
}

// Returns the group of the ranks that have a device; nothing for a rank that is left out. Only a
// launcher other than muster's can have started ranks that are left out.
std::optional<ProcessGroup> join_group(const std::optional<Rendezvous>& met,
                                       const InitOptions& init,
                                       bool launcher_decides,
                                       Surplus surplus,
                                       bool has_device) {
  const Rendezvous rendezvous = met ? *met : open_rendezvous(init);
  if (launcher_decides || surplus != Surplus::drop)
    return init_process_group(rendezvous, init);
  return init_process_group_of_some(rendezvous, init, has_device);
}

// Leaves the group after the function has returned. A call that fails now fails because the
// function is over here while others go on. A peer's failure, in contrast, has a cause of its own.
// In a job that goes on without lost ranks (`goes_on`) nobody is waited for.
void leave(ProcessGroup& group, bool goes_on) {
  if (goes_on)
    return group.abandon();
  try {
    group.shutdown();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_failed)
      throw;
    throw ReturnedEarly(error.code(),
                        cat("rank ",
                            group.rank(),
                            " returned from its function while others did not: ",
                            error.message()));
  }
}

// Begins the trace that `muster run --trace` asks for. The launcher tells all ranks the same, so
// that all come to align_clock(), a collective.
void begin_trace(ProcessGroup& group, const std::string& run_dir) {
  if (run_dir.empty() || !trace_is_asked())
    return;
  align_clock(group, Activity::get());
  if (get_env("MUSTER_TRACE") == "operators")
    trace_operators();
}

// A rank's place in the job and its device, with which it begins.
struct Start {
  RankEnv env;
  RankDevice device;
  InitOptions init;
  bool has_device = true;
  const RunOptions& options;
};

// Makes the ranks of `group` the job: others were left out.
void become_rank_of(const ProcessGroup& group, Start& start) {
  RankEnv& env = start.env;
  env.rank = env.role_rank = start.device.assignment.rank = group.rank();
  env.world_size = env.role_world_size = group.size();
  env.local_world_size = start.device.local_world_size.value_or(env.local_world_size);
  set_log_name(cat("rank ", env.rank));
}

// Calls the function and leaves the group. Returns the exit code.
int call_function(const Start& start, ProcessGroup& group, const RankFunction& fn) {
  begin_trace(group, start.env.run_dir);
  tell_software(group, start.device.assignment.device);
  if (start.device.device.is_cuda())
    show_spans_in_nvtx();
  Context context(
      {.env = start.env,
       .assignment = start.device.assignment,
       .device = start.device.device,
       .group = group,
       .mesh = mesh_of(start.options, start.device, start.env.world_size),
       .batch_shares = batch_shares_of(start.options, start.device, start.env.world_size)});
  const OwnLoaders own_loaders(check_of_own_loaders(group), check_of_stream_ends(group));
  fn(context);
  end_operator_trace();
  leave(group, failure_policy_from_environment() == FailurePolicy::go_on);
  set_job_ranks(1);
  return context.stops() ? kStoppedExitCode : 0;
}

// Joins the group and calls the function. Returns the exit code; nothing for a rank that is to do
// so again, in the job's next attempt.
std::optional<int> call_in_group(Start start,
                                 const std::optional<Rendezvous>& met,
                                 Surplus surplus,
                                 InPlace* in_place,
                                 const RankFunction& fn) {
  const RankEnv& env = start.env;
  const auto goes_on = [in_place] {
    return in_place != nullptr && in_place->goes_on_after(std::current_exception());
  };
  std::optional<ProcessGroup> joined;
  try {
    joined = join_group(met, start.init, !env.plan.empty(), surplus, start.has_device);
    if (in_place != nullptr)
      require_interruptible(*joined);
  } catch (...) {
    if (goes_on())
      return std::nullopt;
    throw;
  }
  if (!joined) {
    log_info("left out: no GPU for local rank ", env.local_rank, " (surplus: drop)");
    return 0;
  }
  ProcessGroup& group = *joined;
  set_job_ranks(group.size());
  if (group.size() < env.world_size)
    become_rank_of(group, start);
  try {
    return call_function(start, group, fn);
  } catch (...) {
    if (goes_on())
      return std::nullopt;
    group.abandon();
    throw;
  }
}

// Warns of options that are for a launcher, where another one has started the ranks. Rank 0 says it
// for all.
void warn_of_unused_options(const RunOptions& options, const Start& start) {
  const RankEnv& env = start.env;
  if (is_started_by_run_call() || env.rank != 0 || env.attempt != 0)
    return;
  const Strings unused = unused_options(options, env, start.device);
  if (unused.empty())
    return;
  log_warning(join(unused, ", "),
              unused.size() == 1 ? " is" : " are",
              " not used: ",
              env.source,
              " has started the ranks; give it the flags, or start the program by itself");
}

// Joins one attempt after the other until the function has returned in one, or fails for a reason
// of its own. Returns the exit code.
int run_attempts(InPlace& in_place, Start start, Surplus surplus, const RankFunction& fn) {
  for (;;) {
    std::optional<Rendezvous> met;
    try {
      met = in_place.meet();
    } catch (...) {
      if (in_place.goes_on_after(std::current_exception()))
        continue;
      throw;
    }
    if (in_place.env().attempt != start.env.attempt) {
      start.env = in_place.env();
      if (const auto now = device_of_rank(start.env, surplus))
        start.device = *now;
    }
    if (const auto code = call_in_group(start, met, surplus, &in_place, fn))
      return *code;
  }
}

// Runs this process as a rank. Returns the exit code.
int run_rank(RankEnv env, const RunOptions& options, const RankFunction& fn) {
  const Surplus surplus = surplus_of(options);
  InitOptions init;
  init.backend = options.backend;
  init.timeout = collective_timeout_of(options);
  init.nccl = options.nccl;
  std::optional<InPlace> in_place;
  if (failure_policy_from_environment() == FailurePolicy::replace)
    in_place.emplace(env, init);
  std::optional<Rendezvous> met;
  if (env.plan.empty() && !env.local_rank_told)
    met = open_rendezvous(init);
  const std::optional<RankDevice> found =
      met ? device_by_hosts(env, *met, surplus, init.init_timeout) : device_of_rank(env, surplus);
  const RankDevice device = found ? *found : cpu_of_rank(env, "no rank has a GPU");
  Start start{.env = std::move(env),
              .device = device,
              .init = init,
              .has_device = found.has_value(),
              .options = options};
  start.init.device = start.device.device;
  warn_of_unused_options(options, start);
  if (in_place)
    return run_attempts(*in_place, std::move(start), surplus, fn);
  return *call_in_group(std::move(start), met, surplus, nullptr, fn);
}

// Prepares a rank to tell where it fails, and what it is doing when it is asked.
void show_stacks(const RankEnv& env, Activity* activity) {
  keep_thrown_stacks(true);
  show_fatal_signals(cat("rank ", env.rank));
  tell_fatal_signals_to(env.error_file);
  if (activity != nullptr)
    answer_stack_requests(*activity);
}

// Does what this process is for: nothing (the call is another process's), to launch ranks, or to be
// one. Returns the exit code.
int make_call(const RunOptions& options, int argc, char** argv, const RankFunction& fn) {
  try {
    let_signals_end_first_process();
    if (const auto code = code_of_call_made_elsewhere())
      return *code;
    const auto env = rank_env_from_environment();
    if (!env)
      return start_ranks(options, argc, argv);
    take_own_name();
    set_log_name(cat("rank ", env->rank));
    Activity* const own = open_own_activity();
    if (wants_backtrace(options))
      show_stacks(*env, own);
    const int code = run_rank(*env, options, fn);
    if (Activity* const activity = Activity::get())
      activity->close();
    return code;
  } catch (...) {
    tell_failure(std::current_exception());
    return 1;
  }
}

}  // namespace

int run(int argc, char** argv, const RankFunction& fn) {
  return run(RunOptions{}, argc, argv, fn);
}

int run(const RunOptions& options, int argc, char** argv, const RankFunction& fn) {
  const int exit_code = make_call(options, argc, argv, fn);
  count_run_call(exit_code);
  return exit_code;
}

}  // namespace muster
