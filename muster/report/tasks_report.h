// All that the folder of a run of tasks tells, as one value, and which tasks came out best. This
// part reads; pages.h makes the page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/device/inventory.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/task_file.h"

namespace muster {

struct TasksReport {
  std::string folder{};
  TaskFile file{};
  JournalState state{};
  Strings problems{};
};

// The task with the best value of one field of the results.
struct BestTask {
  std::string field{};
  bool highest = false;  // else the lowest is meant
  bool by_name = false;  // the field's name tells which end is the better one
  double value = 0;
  size_t task = 0;
};

// A journal that cannot be read is among the problems. Throws: io, invalid_argument for a
// tasks.json that is none.
TasksReport read_tasks_report(const std::string& folder);

// Looks at each field that is a number in every result that has it, and that differs. Returns the
// best task by the field's name (a loss or an error: the lowest; an accuracy or a score: the
// highest), otherwise both ends. Only tasks that are done count.
std::vector<BestTask> best_tasks(const Tasks& tasks, const TaskResults& results);

}  // namespace muster
