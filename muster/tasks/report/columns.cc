// The table and the CSV get their cells from here, so that both say the same of a task.
#include "muster/tasks/report/columns.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ranges>
#include <unordered_set>

#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/device/cpu_list.h"
#include "muster/supervise/child.h"

namespace muster {

// Parameters are sorted by name; fields keep the order in which programs printed them.
ResultColumns result_columns(const Tasks& tasks, const TaskResults& results) {
  check_results(tasks, results);
  ResultColumns columns;
  StringSet parameters;
  for (const Task& task : tasks) {
    const auto names = std::views::keys(task.parameters);
    parameters.insert(names.begin(), names.end());
  }
  columns.parameters.assign(parameters.begin(), parameters.end());
  std::unordered_set<std::string> seen;
  for (const TaskResult& result : results) {
    for (auto& [name, value] : fields_of(result.last_json)) {
      if (seen.insert(name).second)
        columns.fields.push_back(name);
    }
  }
  return columns;
}

// A text that is no object any more, as of another program's journal, has no fields.
ResultFields fields_of(const std::string& json_line) {
  ResultFields fields;
  if (json_line.empty())
    return fields;
  const auto document = nlohmann::ordered_json::parse(json_line, nullptr, false);
  if (!document.is_object())
    return fields;
  for (const auto& [name, value] : document.items()) {
    fields.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return fields;
}

std::string parameter(const Task& task, const std::string& name) {
  return find_or(task.parameters, name);
}

std::string field(const ResultFields& fields, const std::string& name) {
  const auto found = std::ranges::find(fields, name, &ResultFields::value_type::first);
  return found == fields.end() ? "" : found->second;
}

std::string devices_text(const TaskAttempt& attempt, bool with_host) {
  const std::string host = with_host && !attempt.host.empty() ? attempt.host + ": " : "";
  if (!attempt.gpu_indices.empty()) {
    const auto part = attempt.gpu_fraction < 1 ? cat(" (", attempt.gpu_fraction, ")") : "";
    return cat(host, "GPU ", join(attempt.gpu_indices, ","), part);
  }
  if (!attempt.devices.empty())
    return host + join(attempt.devices, ",");
  const auto cpus = attempt.cpus.empty() ? "" : cat(" ", to_cpu_list(attempt.cpus));
  return cat(host, "CPU", cpus);
}

std::string restarts_text(const TaskResult& result) {
  return result.attempts.empty() ? std::string() : cat(result.attempts.back().attempt);
}

// The first cause is the one that is told: a host that was lost tells no signal, and a time limit
// ends a task by one.
std::string end_text(const TaskAttempt& attempt) {
  if (!attempt.ended)
    return "running";
  if (attempt.lost)
    return "lost with its run or host";
  if (attempt.timed_out)
    return "time limit";
  if (attempt.signal != 0)
    return signal_name(attempt.signal);
  if (has_stopped(attempt))
    return cat("stopped (exit code ", attempt.exit_code, ")");
  return attempt.exit_code == 0 ? "" : cat("exit code ", attempt.exit_code);
}

// An exit code has a column of its own elsewhere; a signal or a time limit is worth a word here.
std::string state_text(const TaskResult& result) {
  const std::string state = to_string(result.state);
  if (result.state != TaskState::failed || result.attempts.empty())
    return state;
  const TaskAttempt& last = result.attempts.back();
  if (last.signal == 0 && !last.timed_out)
    return state;
  return cat(state, " (", end_text(last), ")");
}

void check_results(const Tasks& tasks, const TaskResults& results) {
  if (tasks.size() == results.size())
    return;
  throw invalid_argument(
      "results: expected one for each of ", tasks.size(), " tasks, got ", results.size());
}

}  // namespace muster
