// Whose doing an end was decides what it costs. What never began and what was lost with its host
// cost nothing; a stop with exit code 75 costs a pause; a failure of the task's own costs a retry.
#include "muster/tasks/task_exit.h"

#include <signal.h>

#include "muster/base/contains.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/last_json_line.h"

namespace muster {

namespace {

// Shells and launchers add it to a signal's number, and make an exit code of both.
constexpr int kSignalCode = 128;

AttemptEnd conclude(TaskResult& result,
                    TaskState state,
                    const std::string& reason,
                    AttemptEnd how) {
  result.state = state;
  result.reason = reason;
  return how;
}

// The attempt never began: nothing that the task did.
AttemptEnd judge_refusal(const TaskEnd& end, const RunStanding& run, TaskResult& result) {
  if (run.ending)
    return conclude(result, TaskState::skipped, run.why_ended, AttemptEnd::refused);
  const TaskState state = run.draining ? TaskState::skipped : TaskState::waiting;
  return conclude(result, state, end.why_not, AttemptEnd::refused);
}

// The task's own failure: it is tried again while it has retries.
AttemptEnd judge_failure(const Task& task,
                         const std::string& why,
                         const RunStanding& run,
                         TaskResult& result) {
  if (run.failures < task.retries && !run.ending)
    return conclude(result, TaskState::waiting, why, AttemptEnd::again);
  return conclude(result, TaskState::failed, why, AttemptEnd::failed);
}

// "its result's loss is NaN; …" for a result that is no finite number; else empty.
std::string describe_nan(const Task& task, const TaskResult& result) {
  const auto field = not_finite_field(result.last_json, task.parameters);
  return framed("its result's ", field, "; --allow-nan takes that for done");
}

}  // namespace

void take_exit(const Task& task, const TaskEnd& end, TaskAttempt& attempt) {
  const ChildExit& exit = end.exit.exit;
  attempt.lost = end.kind == TaskEnd::Kind::lost;
  const bool has_launcher = task.ranks > 1 && exit.signal == 0;
  const bool tells_signal =
      exit.exit_code > kSignalCode && exit.exit_code <= kSignalCode + SIGRTMAX;
  attempt.signal = has_launcher && tells_signal ? exit.exit_code - kSignalCode : exit.signal;
  attempt.exit_code = attempt.signal == 0 && !attempt.lost ? exit.exit_code : 0;
}

// A start that failed tells why; else the time limit, the exit code or the signal does.
std::string describe_failure(const Task& task, const TaskAttempt& attempt, const TaskEnd& end) {
  if (!end.why_not.empty())
    return end.why_not;
  if (attempt.timed_out)
    return cat("its time limit of ", format_duration(*task.time_limit), " is over");
  if (attempt.signal == 0)
    return cat("exit code ", attempt.exit_code);
  auto text = cat("killed by ", signal_name(attempt.signal));
  if (end.out_of_memory)
    text += ": out of memory, it seems";
  if (end.exit.exit.core_dumped)
    text += ", core dumped";
  return text;
}

AttemptEnd judge_end(const Task& task,
                     const TaskEnd& end,
                     const RunStanding& run,
                     TaskResult& result) {
  if (is_one_of(end.kind, TaskEnd::Kind::refused, TaskEnd::Kind::starved))
    return judge_refusal(end, run, result);
  const bool lost = end.kind == TaskEnd::Kind::lost;
  if (lost && !run.ending)
    return conclude(result, TaskState::waiting, end.why_not, AttemptEnd::interrupted);
  const TaskAttempt& attempt = result.attempts.back();
  if (!end.exit.exit.failed() && !attempt.timed_out) {
    const std::string nan = run.allow_nan ? "" : describe_nan(task, result);
    if (nan.empty())
      return conclude(result, TaskState::done, "", AttemptEnd::done);
    return judge_failure(task, nan, run, result);
  }
  const bool by_run = run.interrupted || lost;
  if (by_run && !attempt.timed_out)
    return conclude(result, TaskState::skipped, run.why_ended, AttemptEnd::interrupted);
  if (has_stopped(attempt))
    return conclude(result,
                    run.draining ? TaskState::skipped : TaskState::waiting,
                    "it stopped, and is to be started again (exit code 75)",
                    AttemptEnd::stopped);
  return judge_failure(task, describe_failure(task, attempt, end), run, result);
}

}  // namespace muster
