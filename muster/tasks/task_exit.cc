#include "muster/tasks/task_exit.h"

#include <signal.h>

#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/tasks/hosts/last_json_line.h"

namespace muster {

namespace {

constexpr int kSignalCode = 128;

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
  if (!end.why_not.empty()) return end.why_not;
  if (attempt.timed_out) return cat("its time limit of ", format_duration(*task.time_limit), " is over");
  if (attempt.signal == 0) return cat("exit code ", attempt.exit_code);
  return cat("killed by ", signal_name(attempt.signal), end.out_of_memory ? ": out of memory, it seems" : "",
             end.exit.exit.core_dumped ? ", core dumped" : "");
}

std::string describe_nan(const Task& task, const TaskResult& result) {
  const std::string field = not_finite_field(result.last_json, task.parameters);
  return field.empty() ? "" : cat("its result's ", field, "; --allow-nan takes that for done");
}

}  // namespace muster
