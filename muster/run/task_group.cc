// Three kinds of processes take part. The parent, which has the TaskSet, hands a plan to a child;
// that child is the launcher and starts the ranks; rank 0 answers to the launcher, which answers to
// the parent. All are the same program and find their part in the order's kind.
#include "muster/run/task_group.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>

#include "muster/base/env.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/launch/launch.h"
#include "muster/run/own_program.h"
#include "muster/run/run_calls.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// Returns the order of the ranks, which answer to the launcher (this process).
TaskOrder order_of_ranks(const TaskOrder& order, int result_fd) {
  TaskOrder ranks{.kind = TaskOrder::Kind::rank, .name = order.name, .number = order.number};
  ranks.tasks = order.tasks;
  ranks.result_fd = result_fd;
  ranks.parent = ::getpid();
  return ranks;
}

// Returns the prefix of the ranks' lines, "[name.0] ", for the ranks of several groups may write at
// the same time.
std::string prefix_of_lines(const std::string& task) {
  return cat("[", join(split(printable(task), '$'), "$$"), ".${rank}] ");
}

LaunchOptions launch_options_of(const TaskOrder& order, const Strings& argv, int result_fd) {
  LaunchOptions options;
  options.argv = argv;
  options.program = kOwnProgram;
  options.inventory = get_env("MUSTER_INVENTORY").value_or("");
  options.plan = cat("/proc/self/fd/", order.plan_fd);
  options.lease = order.lease;
  options.line_prefix = prefix_of_lines(order.name);
  options.extra_env = {{kTaskVariable, order_to_json(order_of_ranks(order, result_fd))},
                       {kRunCallsVariable, run_calls_for_children()}};
  options.quiet = true;
  return options;
}

// The error's own message is better than the way in which the process ended.
std::string text_of_exit(const RankExit& exit, const TaskOrder& order) {
  const auto& why = exit.message.empty() ? exit.cause : exit.message;
  return cat("rank ",
             exit.rank,
             " on ",
             order.rank_places.at(exit.rank),
             ": ",
             why,
             " (process ",
             exit.pid,
             ")");
}

// Says why there is no result, although no rank was reported to have failed.
std::string why_no_result(int exit_code) {
  if (exit_code == 128 + SIGTERM)
    return "its ranks were ended, because another task failed (fail fast) or SIGTERM came";
  if (exit_code > 128)
    return cat("its ranks were ended by ", signal_name(exit_code - 128));
  return "expected a result from rank 0, got none: it ended before its function had returned";
}

// Runs the ranks and answers to the parent. Returns the process's exit code. The descriptors that
// the parent shares are closed in the ranks, which inherit only the memory for rank 0's result.
int launch_and_answer(const TaskOrder& order, const Strings& argv) {
  for (const int fd : {order.result_fd, order.stop_fd, order.plan_fd})
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  const Fd result = new_task_memory("muster-rank-result");
  ::fcntl(result.get(), F_SETFD, 0);
  LaunchOptions options = launch_options_of(order, argv, result.get());
  std::string failure;
  options.on_job_failed = [&](const RankExit& exit) {
    failure = text_of_exit(exit, order);
  };
  const int exit_code = launch(options);
  const auto bytes = result_of(read_task_memory(result.get()));
  if (exit_code == 0 && bytes) {
    answer_with_result(order, *bytes);
    return 0;
  }
  answer_with_error(order, failure.empty() ? why_no_result(exit_code) : failure);
  return std::max(1, exit_code);
}

}  // namespace

std::string run_task_group(TaskChild launcher, const SharedStop& stop) {
  launcher.order.kind = TaskOrder::Kind::launcher;
  // The launcher reads what its ranks report. A launcher around this process must not, for a failed
  // task is no failure of this process.
  launcher.variables["TORCHELASTIC_ERROR_FILE"] = std::nullopt;
  return run_task_child(launcher, stop);
}

void launch_task_group(const TaskOrder& order, const Strings& argv) {
  int exit_code = 1;
  try {
    ::unsetenv(kTaskVariable);
    come_to_own_call();
    set_log_name(cat("task ", printable(order.name)));
    exit_code = launch_and_answer(order, argv);
  } catch (...) {
    answer_with_error(order, text_of_failure(std::current_exception()));
  }
  std::exit(exit_code);
}

}  // namespace muster
