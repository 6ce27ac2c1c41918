// The page of a run of tasks. Results are read from the last JSON line that each task printed, so
// their columns are whatever the tasks have written.
#include "muster/base/contains.h"
#include "muster/base/folders.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/text_of.h"
#include "muster/report/number_text.h"
#include "muster/report/pages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/draw/xml_text.h"
#include "muster/report/html.h"
#include "muster/tasks/report/columns.h"
#include "muster/tasks/report/timeline.h"

namespace muster {
namespace {

constexpr size_t kMostRows = 2000;

using StateCounts = std::map<TaskState, size_t>;

// A state that no task is in has no entry, and operator[] makes one of 0.
StateCounts counts_of(const TasksReport& run) {
  StateCounts counts;
  for (const TaskResult& result : run.state.results)
    ++counts[result.state];
  return counts;
}

// Returns the whole run in a word, and the class of its badge. A run that was killed has left tasks
// that seem to be running.
std::pair<std::string, std::string> standing_of(StateCounts counts) {
  if (counts[TaskState::running] > 0)
    return {"running, or killed", "idle"};
  if (counts[TaskState::failed] > 0)
    return {cat(counts[TaskState::failed], " failed"), "bad"};
  if (counts[TaskState::waiting] + counts[TaskState::skipped] > 0)
    return {"not finished", "warn"};
  return {"done", "good"};
}

// States that no task is in have no tile, except "Done", which people look for.
std::string tasks_tiles(const TasksReport& run) {
  StateCounts counts = counts_of(run);
  const size_t all = run.file.tasks.size();
  const size_t num_done = counts[TaskState::done];
  Tile done{.label = "Done", .value = cat(num_done)};
  if (all > 0)
    done.note = cat(num_done * 100 / all, " %");
  if (num_done == all)
    done.kind = "good";
  std::vector<Tile> tiles = {{.label = "Tasks", .value = cat(all)}, done};
  for (const auto& [state, kind] : {std::pair(TaskState::failed, "bad"),
                                    std::pair(TaskState::skipped, "warn"),
                                    std::pair(TaskState::running, ""),
                                    std::pair(TaskState::waiting, "")}) {
    if (counts[state] > 0) {
      const auto label = with_capital(to_string(state));
      tiles.push_back({.label = label, .value = cat(counts[state]), .kind = kind});
    }
  }
  int64_t restarts = 0;
  for (const TaskResult& result : run.state.results)
    restarts += result.attempts.empty() ? 0 : result.attempts.back().attempt;
  tiles.push_back({.label = "Time", .value = duration_text(run.state.seconds)});
  if (restarts > 0)
    tiles.push_back({.label = "Restarts", .value = cat(restarts)});
  return html_tiles(tiles);
}

// Returns what tells the task from others: its parameters, or its command if it has none.
std::string parameters_of(const Task& task) {
  const auto words = mapped(task.parameters, [](const auto& parameter) {
    return cat(parameter.first, " = ", parameter.second);
  });
  return text_or(join(words, ", "), join(task.argv, " "));
}

// A sweep is mostly made for this table.
std::string best_section(const TasksReport& run) {
  TableRows rows;
  for (const BestTask& one : best_tasks(run.file.tasks, run.state.results)) {
    const Task& task = run.file.tasks[one.task];
    rows.push_back({cat(one.highest ? "highest " : "lowest ", one.field),
                    number_text(one.value),
                    parameters_of(task),
                    task.name});
  }
  if (rows.empty())
    return {};
  return html_section("best",
                      "Best",
                      html_table({{"of"}, {"value", true}, {"with"}, {"task"}}, rows, 40),
                      "Of the tasks that are done, by the last JSON line that each printed.");
}

// The log tells more than a reason can.
std::string failures_section(const TasksReport& run) {
  TableRows rows;
  for (const size_t i : indices_of(run.file.tasks)) {
    const TaskResult& result = run.state.results[i];
    if (!is_one_of(result.state, TaskState::failed, TaskState::skipped))
      continue;
    rows.push_back({run.file.tasks[i].name,
                    to_string(result.state),
                    result.reason,
                    result.attempts.empty() ? "" : result.attempts.back().log});
  }
  if (rows.empty())
    return {};
  return html_section(
      "failures", "Failed and skipped", html_table({{"task"}, {"state"}, {"why"}, {"log"}}, rows));
}

// Returns how long the last attempt took; empty if it has not ended.
std::string duration_of(const TaskResult& result) {
  if (result.attempts.empty() || !result.attempts.back().ended)
    return {};
  return duration_text(*result.attempts.back().ended - result.attempts.back().began);
}

// Shortens a long number to the digits that people read, and a long text to its beginning.
std::string shown_field(const std::string& text) {
  const auto number = parse_as<double>(text);
  return number && text.size() > 7 ? cat(*number) : fit_text(text, 60);
}

// A row for each task: its parameters, how it went, and the fields that it printed.
std::string results_section(const TasksReport& run) {
  constexpr size_t kMostFields = 24;
  ResultColumns columns = result_columns(run.file.tasks, run.state.results);
  // Tasks may print any number of fields, and a table has room for some.
  const size_t left_out = columns.fields.size() - std::min(columns.fields.size(), kMostFields);
  columns.fields.resize(columns.fields.size() - left_out);
  TableColumns titles = {{"task"}};
  for (const auto& name : columns.parameters)
    titles.push_back({name, true});
  titles.insert(titles.end(), {{"state"}, {"restarts", true}, {"devices"}, {"time", true}});
  for (const auto& name : columns.fields)
    titles.push_back({name, true});
  TableRows rows;
  for (const size_t i : indices_of(run.file.tasks)) {
    const Task& task = run.file.tasks[i];
    const TaskResult& result = run.state.results[i];
    Strings row = {task.name};
    for (const auto& name : columns.parameters) {
      row.push_back(fit_text(find_or(task.parameters, name), 60));
    }
    row.insert(row.end(),
               {state_text(result),
                restarts_text(result),
                result.attempts.empty() ? "" : devices_text(result.attempts.back(), true),
                duration_of(result)});
    const ResultFields fields = fields_of(result.last_json);
    for (const auto& name : columns.fields)
      row.push_back(shown_field(field(fields, name)));
    rows.push_back(std::move(row));
  }
  const std::string more = left_out > 0 ? cat(left_out, " more fields are in the JSON.") : "";
  return html_section("results", "Results", html_table(titles, rows, kMostRows), more);
}

// A run in which no task has begun has no timeline.
std::string timeline_section(const TasksReport& run) {
  const auto has_begun = [](const TaskResult& result) {
    return !result.attempts.empty();
  };
  if (none_of(run.state.results, has_begun))
    return {};
  return html_section("timeline",
                      "Which device ran what, and when",
                      timeline_figure(run.file.tasks, run.state.results, {}));
}

// The settings are those of the spec file and of the flags, as the run's folder keeps them.
std::string environment_of(const TasksReport& run) {
  std::vector<Fact> facts = {{"Run", run.state.head.run_id}};
  if (run.state.began_wall > 0)
    facts.push_back({"Started, or went on", wall_time_text(run.state.began_wall)});
  for (const auto& [name, value] : run.file.settings)
    facts.push_back({with_capital(name), value, true});
  facts.push_back({"Run folder", run.folder, true});
  return html_section("environment", "Environment", html_facts(facts));
}

// A sweep without a spec file is called by its folder.
std::string tasks_title(const TasksReport& run) {
  return file_name(text_or(find_or(run.file.settings, "spec"), run.folder));
}

}  // namespace

// The best tasks stand above the failures, and the table of all results near the end.
std::string tasks_page(const TasksReport& run) {
  const auto [standing, kind] = standing_of(counts_of(run));
  const PageHead head{
      .title = tasks_title(run),
      .outcome = standing,
      .kind = kind,
      .line = cat(plural(run.file.tasks.size(), "task"), " in ", file_name(run.folder)),
      .problems = run.problems};
  return cat(page_begin(head, timeline_style()),
             tasks_tiles(run),
             best_section(run),
             failures_section(run),
             timeline_section(run),
             results_section(run),
             environment_of(run),
             page_end(run.folder));
}

}  // namespace muster
