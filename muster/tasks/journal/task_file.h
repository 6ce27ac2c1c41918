// `<run_dir>/tasks.json`: the tasks of a run as they were when it began, a task a line, after a
// line with the run's settings. So that a run can go on when its spec file has changed or is gone.
// Values and text.
#pragma once

#include <string>

#include "muster/tasks/task.h"

namespace muster {

struct TaskFile {
  StringMap settings{};  // of the command line: "gpus" → "0,2"
  Tasks tasks{};
  bool operator==(const TaskFile&) const = default;
};

std::string task_file_path(const std::string& run_dir);

std::string to_text(const TaskFile& file);

// `source` (a file's name) is named in errors. Throws: invalid_argument naming the line.
TaskFile task_file_of(const std::string& text, const std::string& source);

}  // namespace muster
