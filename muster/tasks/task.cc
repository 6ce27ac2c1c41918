// Questions about the values of task.h that several parts ask.
#include "muster/tasks/task.h"

#include <utility>

#include "muster/base/lookup.h"
#include "muster/launch/exit_report.h"

namespace muster {

// Busy GPUs are no reason to run on CPUs.
TaskNeeds needs_here(TaskNeeds needs, bool has_gpus) {
  if (has_gpus)
    std::erase_if(needs, [](const TaskNeed& need) { return need.without_gpus; });
  return needs;
}

// Neither side's case counts.
bool is_model(const std::string& model, const TaskNeed& need) {
  return need.model.empty() || has_text(lower_case(model), lower_case(need.model));
}

bool has_stopped(const TaskAttempt& attempt) {
  const bool ended_by_itself = attempt.ended && !attempt.lost && !attempt.timed_out;
  return ended_by_itself && attempt.signal == 0 && attempt.exit_code == kStoppedExitCode;
}

const char* to_string(TaskState state) {
  static constexpr std::pair<TaskState, const char*> kNames[] = {{TaskState::waiting, "waiting"},
                                                                 {TaskState::running, "running"},
                                                                 {TaskState::done, "done"},
                                                                 {TaskState::failed, "failed"},
                                                                 {TaskState::skipped, "skipped"}};
  return lookup(kNames, state, "?");
}

}  // namespace muster
