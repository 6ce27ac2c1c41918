// Each task is a row of texts first; then the columns that hold numbers alone are found, and set
// right.
#include "muster/tasks/report/results_table.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/draw/text_table.h"
#include "muster/draw/xml_text.h"
#include "muster/tasks/report/columns.h"

namespace muster {
namespace {

constexpr size_t kMaxFieldsShown = 12;
constexpr size_t kMaxCell = 40;  // characters

int digits_after_point(const std::string& text) {
  const size_t point = text.find('.');
  return point == npos ? 0 : static_cast<int>(text.size() - point - 1);
}

// The number with so many digits behind the point. The largest double has 309 before it.
std::string fixed_text(double value, int after_point) {
  char text[400];
  const auto end =
      std::to_chars(text, text + sizeof(text), value, std::chars_format::fixed, after_point);
  return {text, end.ptr};
}

// Puts a column's numbers under each other: six digits that count, and as many behind the point in
// each. Returns whether they were all numbers; then the column is set right.
bool align_numbers(TableRows& rows, size_t column) {
  std::vector<std::pair<std::string*, double>> numbers;
  for (auto& row : rows) {
    if (row[column].empty())
      continue;
    const auto value = parse_as<double>(row[column]);
    if (!value)
      return false;
    numbers.emplace_back(&row[column], *value);
  }
  int after_point = 0;
  for (const auto& [text, value] : numbers) {
    const auto shown = cat(value);
    if (shown.find_first_of("en") != npos)  // 1e-05, nan, inf: they stay as they are
      return true;
    after_point = std::max(after_point, digits_after_point(shown));
  }
  if (after_point == 0)
    return !numbers.empty();
  for (const auto& [text, value] : numbers)
    *text = fixed_text(value, after_point);
  return true;
}

// Whether attempts ran on more than one host: then each says on which.
bool several_hosts(const TaskResults& results) {
  std::string host;
  for (const TaskResult& result : results) {
    for (const TaskAttempt& attempt : result.attempts) {
      if (!host.empty() && attempt.host != host)
        return true;
      host = attempt.host;
    }
  }
  return false;
}

// How long the last attempt took; empty while it runs.
std::string time_text(const TaskResult& result) {
  if (result.attempts.empty() || !result.attempts.back().ended)
    return "";
  const TaskAttempt& last = result.attempts.back();
  return format_duration(
      std::chrono::nanoseconds(static_cast<int64_t>((*last.ended - last.began) * 1e9)));
}

// Texts that are too wide are cut. Devices and time are of the last attempt.
Strings table_row(const Task& task,
                  const TaskResult& result,
                  const ResultColumns& columns,
                  bool with_host) {
  Strings cells = {fit_text(task.name, kMaxCell)};
  for (const auto& name : columns.parameters)
    cells.push_back(fit_text(parameter(task, name), kMaxCell));
  cells.insert(cells.end(), {state_text(result), restarts_text(result)});
  cells.push_back(result.attempts.empty() ? "" : devices_text(result.attempts.back(), with_host));
  cells.push_back(time_text(result));
  const ResultFields fields = fields_of(result.last_json);
  for (const auto& name : columns.fields)
    cells.push_back(fit_text(field(fields, name), kMaxCell));
  return cells;
}

}  // namespace

// Parameters are set right where all are numbers, and stay as they were given: 1e-4 is not made
// 0.0001.
std::string results_table(const Tasks& tasks, const TaskResults& results) {
  ResultColumns columns = result_columns(tasks, results);
  const size_t num_fields = columns.fields.size();
  columns.fields.resize(std::min(num_fields, kMaxFieldsShown));
  TableColumns titles = {{"task"}};
  for (const auto& name : columns.parameters)
    titles.push_back({name});
  const size_t first_fact = titles.size();
  titles.insert(titles.end(), {{"state"}, {"restarts", true}, {"devices"}, {"time", true}});
  const size_t first_field = titles.size();
  for (const auto& name : columns.fields)
    titles.push_back({name});
  const bool with_host = several_hosts(results);
  TableRows rows;
  rows.reserve(tasks.size());
  for (const size_t i : indices_of(tasks))
    rows.push_back(table_row(tasks[i], results[i], columns, with_host));
  for (size_t i = 1; i < first_fact; ++i) {  // as they were given: 1e-4 stays
    titles[i].right =
        all_of(rows, [&](const auto& row) { return row[i].empty() || parse_as<double>(row[i]); });
  }
  for (size_t i = first_field; i < titles.size(); ++i)
    titles[i].right = align_numbers(rows, i);
  std::string table = format_table(titles, rows);
  if (num_fields > kMaxFieldsShown)
    table += cat("(", num_fields - kMaxFieldsShown, " more columns are in the JSON and the CSV)\n");
  return table;
}

}  // namespace muster
