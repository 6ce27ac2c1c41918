// The tasks themselves are written as `muster tasks` writes them, so that a program finds the same
// members in both.
#include "muster/base/json_member.h"
#include "muster/report/pages.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "muster/tasks/report/results.h"

namespace muster {

std::string tasks_report_json(const TasksReport& run) {
  using TasksJson = nlohmann::ordered_json;
  const auto& tasks = run.file.tasks;
  TasksJson best = TasksJson::array();
  // A field's name may not tell which end is good; both ends are then told.
  for (const BestTask& one : best_tasks(tasks, run.state.results)) {
    best.push_back({{"field", one.field},
                    {"which", one.highest ? "highest" : "lowest"},
                    {"known_to_be_better", one.by_name},
                    {"value", one.value},
                    {"task", tasks[one.task].name},
                    {"parameters", tasks[one.task].parameters}});
  }
  const TasksJson document = {
      {"schema", "muster.report/1"},
      {"kind", "tasks"},
      {"folder", run.folder},
      {"run_id", run.state.head.run_id},
      {"problems", run.problems},
      {"seconds", run.state.seconds},
      {"best", std::move(best)},
      {"tasks", TasksJson::parse(results_json(tasks, run.state.results)).at("tasks")}};
  return json_text(document, 1) + "\n";
}

}  // namespace muster
