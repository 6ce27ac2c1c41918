#include "muster/run/run.h"

#include "muster/base/env.h"
#include "muster/base/failure_policy.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/comm/clock_alignment.h"
#include "muster/comm/init_after_rendezvous.h"
#include "muster/comm/job_ranks.h"
#include "muster/data/own_loaders.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/launch.h"
#include "muster/run/error_file.h"
#include "muster/run/fatal_signal.h"
#include "muster/run/in_place.h"
#include "muster/run/local_place.h"
#include "muster/run/nvtx_ranges.h"
#include "muster/run/operator_trace.h"
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

Surplus surplus_of(const RunOptions& options) {
  const auto told = get_env("MUSTER_SURPLUS");
  return told ? parse_surplus(*told) : options.surplus;
}

bool wants_backtrace(const RunOptions& options) {
  const auto told = get_env_int("MUSTER_BACKTRACE");
  if (told && *told != 0 && *told != 1)
    throw Error(ErrorCode::invalid_argument,
                cat("MUSTER_BACKTRACE: expected 0 or 1, got ", *told, "; correct it"));
  return told ? *told == 1 : options.backtrace;
}

// As the environment says it, or else the options.
LaunchOptions own_launch_options(const RunOptions& options, int argc, char** argv) {
  collective_timeout(options.collective_timeout);  // the ranks read these two: what is wrong is
                                                   // said before they start
  wants_backtrace(options);
  LaunchOptions launch_options;
  launch_options.argv = own_command_line(argc, argv);
  launch_options.program = kOwnProgram;
  launch_options.request.nproc_per_node = options.nproc;
  if (const auto nproc = get_env_int("MUSTER_NPROC")) {
    if (*nproc > INT32_MAX) {
      throw Error(ErrorCode::invalid_argument,
                  cat("environment: expected a number of ranks in MUSTER_NPROC, got ", *nproc));
    }
    launch_options.request.nproc_per_node = static_cast<int>(*nproc);
  }
  launch_options.request.gpus = get_env("MUSTER_GPUS").value_or(options.gpus);
  launch_options.request.policy = get_env("MUSTER_POLICY").value_or(options.policy);
  launch_options.request.map = options.map;
  launch_options.request.visibility = options.visibility;
  launch_options.request.surplus = surplus_of(options);
  launch_options.failure_policy = failure_policy_from_environment();
  if (launch_options.failure_policy == FailurePolicy::replace) {
    launch_options.max_restarts = kReplacements;
    if (get_env("MUSTER_COLLECTIVE_TIMEOUT"))
      launch_options.rejoin_within = collective_timeout(options.collective_timeout);
  }
  launch_options.inventory = get_env("MUSTER_INVENTORY").value_or("");
  launch_options.extra_env = {{kRunCallsVariable, run_calls_for_children()}};
  return launch_options;
}

// Started alone: this process becomes the launcher. It starts itself again by fork and exec at
// once, so nothing of LibTorch's state (threads, CUDA) is ever inherited.
int start_ranks(const RunOptions& options, int argc, char** argv) {
  try {
    return launch(own_launch_options(options, argc, argv));
  } catch (const Error& error) {
    log(LogLevel::error, error.message());
    return exit_code_of(error);
  }
}

// The group of the ranks that have a device; nothing for one that is left out.
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

// What fails now does so because the function is over here; that a peer failed has another cause.
void leave(ProcessGroup& group, bool goes_on) {
  if (goes_on)
    return group.abandon();  // one may be dead: nobody is waited for
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

// Where one is asked for. All ranks have the launcher's word for it.
void begin_trace(ProcessGroup& group, const std::string& run_dir) {
  if (run_dir.empty() || !trace_is_asked())
    return;
  align_clock(group, Activity::get());
  if (get_env("MUSTER_TRACE") == "operators")
    trace_operators();
}

// A rank as it begins: where it stands, and on which device.
struct Start {
  RankEnv env;
  RankDevice device;
  InitOptions init;
  bool has_device = true;
};

// Joins the group and calls the function. The exit code; nothing for a rank that is to do the same
// again, in the job's next generation.
std::optional<int> call_in_group(Start start,
                                 const std::optional<Rendezvous>& met,
                                 Surplus surplus,
                                 InPlace* in_place,
                                 const std::function<void(Context&)>& fn) {
  RankEnv& env = start.env;
  std::optional<ProcessGroup> joined;
  try {
    joined = join_group(met, start.init, !env.plan.empty(), surplus, start.has_device);
    if (in_place != nullptr)
      require_interruptible(*joined);
  } catch (...) {
    if (in_place != nullptr && in_place->goes_on_after(std::current_exception()))
      return std::nullopt;
    throw;
  }
  if (!joined) {
    log(LogLevel::info,
        cat("left out: no GPU for local rank ", env.local_rank, " (surplus: drop)"));
    return 0;
  }
  ProcessGroup& group = *joined;
  set_job_ranks(group.size());
  if (group.size() < env.world_size) {  // some were left out: the others are the job
    env.rank = env.role_rank = start.device.assignment.rank = group.rank();
    env.world_size = env.role_world_size = group.size();
    env.local_world_size = start.device.local_world_size.value_or(env.local_world_size);
    set_log_name(cat("rank ", env.rank));
  }
  try {
    begin_trace(group, env.run_dir);
    tell_software(group, start.device.assignment.device);
    if (start.device.device.is_cuda())
      show_spans_in_nvtx();
    Context context({.env = env,
                     .assignment = start.device.assignment,
                     .device = start.device.device,
                     .group = group,
                     .mesh = start.device.mesh,
                     .batch_shares = start.device.batch_shares});
    const OwnLoaders own_loaders(check_of_own_loaders(group));
    fn(context);
    end_operator_trace();
    leave(group, failure_policy_from_environment() == FailurePolicy::go_on);
    set_job_ranks(1);
    return context.stops() ? kStoppedExitCode : 0;
  } catch (...) {
    if (in_place != nullptr && in_place->goes_on_after(std::current_exception()))
      return std::nullopt;
    group.abandon();
    throw;
  }
}

// Rank 0 says it for all.
void warn_of_unused_options(const RunOptions& options, const RankEnv& env) {
  const RunOptions none;
  std::vector<std::string> unused;
  const bool as_many = options.nproc == env.local_world_size || options.nproc == env.world_size;
  if (options.nproc && !as_many)
    unused.emplace_back("RunOptions::nproc");
  if (options.gpus != none.gpus)
    unused.emplace_back("RunOptions::gpus");
  if (options.policy != none.policy)
    unused.emplace_back("RunOptions::policy");
  if (options.map != none.map)
    unused.emplace_back("RunOptions::map");
  if (options.visibility != none.visibility)
    unused.emplace_back("RunOptions::visibility");
  for (const char* const variable : {"MUSTER_NPROC", "MUSTER_GPUS", "MUSTER_POLICY"}) {
    if (get_env(variable) && !get_env("MUSTER_TASK"))
      unused.emplace_back(variable);
  }
  if (unused.empty() || env.rank != 0 || env.attempt != 0)
    return;
  log(LogLevel::warn,
      cat(join(unused, ", "),
          unused.size() == 1 ? " is" : " are",
          " not used: ",
          env.source,
          " has placed the ranks; give it the flags, or start the program by itself"));
}

// The exit code.
int run_rank(RankEnv env, const RunOptions& options, const std::function<void(Context&)>& fn) {
  const Surplus surplus = surplus_of(options);
  InitOptions init;
  init.backend = options.backend;
  init.timeout = options.collective_timeout;
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
  Start start{
      .env = std::move(env), .device = device, .init = init, .has_device = found.has_value()};
  start.init.device = start.device.device;
  if (!in_place)
    return *call_in_group(std::move(start), met, surplus, nullptr, fn);
  for (;;) {
    try {
      met = in_place->meet();
    } catch (...) {
      if (in_place->goes_on_after(std::current_exception()))
        continue;
      throw;
    }
    if (in_place->env().attempt != start.env.attempt) {
      start.env = in_place->env();
      if (const auto now = device_of_rank(start.env, surplus))
        start.device = *now;
    }
    if (const auto code = call_in_group(start, met, surplus, &*in_place, fn))
      return *code;
  }
}

int make_call(const RunOptions& options,
              int argc,
              char** argv,
              const std::function<void(Context&)>& fn) {
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
    if (wants_backtrace(options)) {
      keep_thrown_stacks(true);
      show_fatal_signals(cat("rank ", env->rank));
      tell_fatal_signals_to(env->error_file);
      if (own != nullptr)
        answer_stack_requests(*own);
    }
    if (!is_started_by_run_call())
      warn_of_unused_options(options, *env);
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

int run(int argc, char** argv, const std::function<void(Context&)>& fn) {
  return run(RunOptions{}, argc, argv, fn);
}

int run(const RunOptions& options, int argc, char** argv, const std::function<void(Context&)>& fn) {
  const int exit_code = make_call(options, argc, argv, fn);
  count_run_call(exit_code);
  return exit_code;
}

}  // namespace muster
