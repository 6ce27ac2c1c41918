// The JSON has all that is known of every attempt. The CSV has a row a task: the parameters, what
// came of the last attempt, and the fields of what the task printed, whose names differ from those
// of all other columns.
#include "muster/tasks/report/results.h"

#include <nlohmann/json.hpp>

#include "muster/base/indices_of.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/tasks/report/columns.h"

namespace muster {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Facts that are not known are null: how an attempt ended that was lost, or still runs.
OrderedJson attempt_json(const TaskAttempt& attempt) {
  OrderedJson json = {
      {"attempt", attempt.attempt}, {"host", attempt.host}, {"devices", attempt.devices}};
  json["gpus"] = attempt.gpu_indices;
  json["gpu_fraction"] = attempt.gpu_indices.empty() ? 0 : attempt.gpu_fraction;
  json["cpus"] = attempt.cpus;
  json["began"] = attempt.began;
  json["ended"] = or_null(attempt.ended);
  const bool known = attempt.ended && !attempt.lost;
  const bool exited = known && attempt.signal == 0;  // one that was killed has no exit code
  json["exit_code"] = exited ? OrderedJson(attempt.exit_code) : OrderedJson(nullptr);
  json["signal"] = known ? OrderedJson(attempt.signal) : OrderedJson(nullptr);
  json["timed_out"] = attempt.timed_out;
  json["lost"] = attempt.lost;
  json["stopped"] = has_stopped(attempt);
  json["log"] = attempt.log;
  return json;
}

OrderedJson task_json(const Task& task, const TaskResult& result) {
  OrderedJson json = {{"name", task.name}, {"parameters", task.parameters}, {"argv", task.argv}};
  json["state"] = to_string(result.state);
  json["reason"] = result.reason;
  const auto printed = OrderedJson::parse(result.last_json, nullptr, false);
  json["result"] = printed.is_object() ? printed : OrderedJson(nullptr);
  json["attempts"] = mapped(result.attempts, attempt_json);
  return json;
}

// The text, quoted where RFC 4180 wants it.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == npos)
    return text;
  return cat("\"", join(split(text, '"'), "\"\""), "\"");
}

void append_csv_row(std::string& out, const Strings& cells) {
  const auto written = mapped(cells, csv_cell);
  out += cat(join(written, ","), "\r\n");
}

// The facts of a task that are no parameters and no fields.
const Strings& csv_columns() {
  static const Strings columns = {"state",
                                  "reason",
                                  "restarts",
                                  "host",
                                  "devices",
                                  "seconds",
                                  "exit_code",
                                  "signal",
                                  "timed_out"};
  return columns;
}

// The cells of csv_columns. Those that are not known are empty: all after the devices where the
// attempt has no end, and all after the seconds where it was lost.
Strings csv_facts(const TaskResult& result) {
  Strings cells = {to_string(result.state), result.reason, restarts_text(result)};
  if (!result.attempts.empty()) {
    const TaskAttempt& last = result.attempts.back();
    cells.push_back(last.host);
    cells.push_back(devices_text(last, false));
    if (last.ended)
      cells.push_back(nlohmann::json(*last.ended - last.began).dump());
    if (last.ended && !last.lost) {
      cells.push_back(last.signal == 0 ? cat(last.exit_code) : "");
      cells.push_back(cat(last.signal));
      cells.push_back(cat(last.timed_out));
    }
  }
  cells.resize(csv_columns().size());
  return cells;
}

// Takes `name` as a title, or with as many prefixes as make one that is not taken yet.
std::string column_title(const std::string& prefix, const std::string& name, StringSet& taken) {
  std::string title = name;
  while (!taken.insert(title).second)
    title = cat(prefix, ".", title);
  return title;
}

// The titles in the order of the cells. Facts keep their names; a parameter or field that has one
// of these gets another.
Strings csv_titles(const ResultColumns& columns) {
  StringSet taken = {"name"};
  taken.insert(csv_columns().begin(), csv_columns().end());
  Strings titles = {"name"};
  for (const auto& name : columns.parameters)
    titles.push_back(column_title("parameter", name, taken));
  append_all(titles, csv_columns());
  for (const auto& name : columns.fields)
    titles.push_back(column_title("result", name, taken));
  return titles;
}

}  // namespace

std::string results_json(const Tasks& tasks, const TaskResults& results) {
  check_results(tasks, results);
  std::string text = "{\"schema\": \"muster.tasks/1\", \"tasks\": [";
  for (const size_t i : indices_of(tasks)) {
    text += i == 0 ? "\n" : ",\n";
    text += json_text(task_json(tasks[i], results[i]));
  }
  return text + "\n]}\n";
}

// Every row has all columns, whatever its task has of them.
std::string results_csv(const Tasks& tasks, const TaskResults& results) {
  const ResultColumns columns = result_columns(tasks, results);
  std::string text;
  append_csv_row(text, csv_titles(columns));
  for (const size_t i : indices_of(tasks)) {
    Strings cells = {tasks[i].name};
    append_mapped(
        cells, columns.parameters, [&](const auto& name) { return parameter(tasks[i], name); });
    append_all(cells, csv_facts(results[i]));
    const ResultFields fields = fields_of(results[i].last_json);
    append_mapped(cells, columns.fields, [&](const auto& name) { return field(fields, name); });
    append_csv_row(text, cells);
  }
  return text;
}

}  // namespace muster
