#include "muster/tasks/task.h"

namespace muster {

const char* to_string(TaskState state) {
  switch (state) {
    case TaskState::waiting:
      return "waiting";
    case TaskState::running:
      return "running";
    case TaskState::done:
      return "done";
    case TaskState::failed:
      return "failed";
    case TaskState::skipped:
      return "skipped";
  }
  return "?";
}

}  // namespace muster
