#include "muster/tasks/task_exit.h"

#include <signal.h>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/last_json_line.h"

namespace muster {

namespace {

constexpr int kSignalCode = 128;

AttemptEnd put_off(TaskResult& result, TaskState state, const std::string& reason, AttemptEnd how) {
  result.state = state;
  result.reason = reason;
  return how;
}

}  // namespace

void take_exit(const Task& task, const TaskEnd& end, TaskAttempt& attempt) {
  const ChildExit& exit = end.exit.exit;
  attempt.lost = end.kind == TaskEnd::Kind::lost;
  const bool by_launcher = task.ranks > 1 && exit.signal == 0 && exit.exit_code > kSignalCode &&
                           exit.exit_code <= kSignalCode + SIGRTMAX;
  attempt.signal = by_launcher ? exit.exit_code - kSignalCode : exit.signal;
  attempt.exit_code = attempt.signal == 0 && !attempt.lost ? exit.exit_code : 0;
}

std::string describe_failure(const Task& task, const TaskAttempt& attempt, const TaskEnd& end) {
  if (!end.why_not.empty())
    return end.why_not;
  if (attempt.timed_out)
    return cat("its time limit of ", format_duration(*task.time_limit), " is over");
  if (attempt.signal == 0)
    return cat("exit code ", attempt.exit_code);
  return cat("killed by ",
             signal_name(attempt.signal),
             end.out_of_memory ? ": out of memory, it seems" : "",
             end.exit.exit.core_dumped ? ", core dumped" : "");
}

std::string describe_nan(const Task& task, const TaskResult& result) {
  const std::string field = not_finite_field(result.last_json, task.parameters);
  return field.empty() ? "" : cat("its result's ", field, "; --allow-nan takes that for done");
}

AttemptEnd judge_end(const Task& task,
                     const TaskEnd& end,
                     const RunStanding& run,
                     TaskResult& result) {
  const TaskAttempt& attempt = result.attempts.back();
  if (end.kind == TaskEnd::Kind::refused || end.kind == TaskEnd::Kind::starved)
    return put_off(result,
                   run.ending ? TaskState::skipped : TaskState::waiting,
                   run.ending ? run.why_ended : end.why_not,
                   AttemptEnd::refused);
  if (end.kind != TaskEnd::Kind::ended && !run.ending)  // not its own doing: that costs no retry
    return put_off(result, TaskState::waiting, end.why_not, AttemptEnd::interrupted);
  const bool ended_well = !end.exit.exit.failed() && !attempt.timed_out;
  const std::string nan = ended_well && !run.allow_nan ? describe_nan(task, result) : "";
  if (ended_well && nan.empty())
    return put_off(result, TaskState::done, "", AttemptEnd::done);
  if (!ended_well && (run.interrupted || end.kind != TaskEnd::Kind::ended) && !attempt.timed_out)
    return put_off(result, TaskState::skipped, run.why_ended, AttemptEnd::interrupted);
  if (has_stopped(attempt))
    return put_off(result,
                   run.draining ? TaskState::skipped : TaskState::waiting,
                   "it stopped, and is to be started again (exit code 75)",
                   AttemptEnd::stopped);
  const bool again = run.failures < task.retries && !run.ending;
  return put_off(result,
                 again ? TaskState::waiting : TaskState::failed,
                 ended_well ? nan : describe_failure(task, attempt, end),
                 again ? AttemptEnd::again : AttemptEnd::failed);
}

}  // namespace muster
