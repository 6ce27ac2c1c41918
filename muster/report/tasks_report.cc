// Nobody tells which of a task's numbers matter, nor which end of them is good. Names do so often
// enough: what is called a loss is better when it is lower.
#include "muster/report/tasks_report.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_words.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/tasks/report/columns.h"

namespace muster {
namespace {

bool names_any(const std::string& name, std::initializer_list<const char*> parts) {
  return any_of(parts, [&](const char* part) { return has_text(name, part); });
}

struct FieldRange {
  std::optional<BestTask> lowest{};
  std::optional<BestTask> highest{};
  bool all_numbers = true;  // one that is not finite counts as a number too
};

bool names_no_finite_number(const std::string& text) {
  return is_one_of(text, "NaN", "null") || text.ends_with("Infinity");
}

// Returns the tasks with the least and the greatest value of a field, among those that are done.
FieldRange range_of(const std::string& name,
                    const TaskResults& results,
                    const std::vector<ResultFields>& fields) {
  FieldRange range;
  for (const size_t task : indices_of(results)) {
    const auto text = field(fields[task], name);
    if (results[task].state != TaskState::done || text.empty())
      continue;
    const auto value = parse_as<double>(text);
    if (!value || !std::isfinite(*value)) {
      range.all_numbers &= names_no_finite_number(text);
      continue;
    }
    const BestTask one{.field = name, .value = *value, .task = task};
    if (!range.lowest || *value < range.lowest->value)
      range.lowest = one;
    if (!range.highest || *value > range.highest->value)
      range.highest = one;
  }
  return range;
}

}  // namespace

// A journal that ends in a broken line is read up to there.
TasksReport read_tasks_report(const std::string& folder) {
  const auto path = task_file_path(folder);
  TasksReport run{.folder = folder, .file = task_file_of(read_plain_file(path), path)};
  run.state = blank_state(run.file.tasks.size());
  if (!path_exists(journal_path(folder))) {
    run.problems.push_back("there is no journal: no task has been started");
    return run;
  }
  try {
    run.state = read_journal(folder, run.file.tasks);
    if (!run.state.cut.empty())
      run.problems.push_back(cat("journal: ", printable(run.state.cut)));
  } catch (const Error& problem) {
    run.problems.push_back(cat("the journal is left out: ", printable(json_words(problem.what()))));
  }
  return run;
}

// A field that is the same in all results tells nothing.
std::vector<BestTask> best_tasks(const Tasks& tasks, const TaskResults& results) {
  const auto fields =
      mapped(results, [](const TaskResult& result) { return fields_of(result.last_json); });
  std::vector<BestTask> best;
  for (const auto& name : result_columns(tasks, results).fields) {
    FieldRange range = range_of(name, results, fields);
    if (!range.all_numbers || !range.lowest || range.lowest->value == range.highest->value)
      continue;
    const bool low =
        names_any(name, {"loss", "error", "err", "perplexity", "seconds", "mse", "mae"});
    const bool high =
        !low && names_any(name, {"acc", "score", "f1", "auc", "reward", "per_second", "bleu"});
    range.highest->highest = true;
    range.lowest->by_name = range.highest->by_name = low || high;
    if (!high)
      best.push_back(*range.lowest);
    if (!low)
      best.push_back(*range.highest);
  }
  // Fields whose better end is known come first.
  std::stable_partition(best.begin(), best.end(), [](const BestTask& one) { return one.by_name; });
  return best;
}

}  // namespace muster
