#include "muster/tasks/spec/sweep.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/template.h"

namespace muster {
namespace {

[[noreturn]] void fail_in(const char* flag,
                          const std::string& text,
                          size_t at,
                          const std::string& problem) {
  const std::string shown = cat(flag, text);
  const auto begins = [](unsigned char c) {
    return (c & 0xc0U) != 0x80;
  };
  const auto column =
      std::count_if(shown.begin(),
                    shown.begin() + static_cast<ptrdiff_t>(std::string_view(flag).size() + at),
                    begins);
  throw Error(ErrorCode::invalid_argument,
              cat(flag,
                  printable(text),
                  ": ",
                  printable(problem),
                  " (at character ",
                  at + 1,
                  ")",
                  caret_lines(shown, static_cast<int>(column) + 1)));
}

// "1..x" and "0.1..0.5", unlike "../data" and "a..b": a number beside the dots, and yet no range.
bool looks_like_range(const std::string& piece) {
  const auto is_number = [](const std::string& text) {
    char* end = nullptr;
    std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0';
  };
  const size_t dots = piece.find("..");
  if (dots == std::string::npos)
    return false;
  const std::string first = piece.substr(0, dots);
  const std::string last = piece.substr(dots + 2);
  return (is_number(first) || is_number(last)) && !(parse_int(first) && parse_int(last));
}

TaskParameter parse_sweep(const std::string& text, const std::vector<TaskParameter>& others) {
  constexpr const char* kFlag = "--sweep ";
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (!is_parameter_name(name))
    fail_in(kFlag, text, 0, "expected NAME=VALUE,… with a name of letters, digits, '_' and '-'");
  if (equals == std::string::npos)
    fail_in(kFlag, text, text.size(), "expected '=' and values, got nothing");
  const auto same = [&](const TaskParameter& other) {
    return other.name == name;
  };
  if (std::ranges::any_of(others, same))
    fail_in(kFlag, text, 0, cat("expected each name once, got ", name, " again"));
  TaskParameter parameter{.name = name};
  size_t at = equals + 1;
  for (const std::string& piece : split(std::string_view(text).substr(at), ',')) {
    if (piece.empty())
      fail_in(kFlag, text, at, "expected a value or a range (1..5), got nothing");
    if (looks_like_range(piece)) {
      fail_in(
          kFlag,
          text,
          at,
          cat("expected a range of whole numbers, as 1..5, got ",
              piece,
              "; other values one by one, with commas, and a text that has '..' in a spec file"));
    }
    try {
      const auto range = range_values(piece);
      const std::vector<std::string> values = range ? *range : std::vector<std::string>{piece};
      parameter.values.insert(parameter.values.end(), values.begin(), values.end());
    } catch (const Error& error) {
      fail_in(kFlag, text, at, error.message());
    }
    at += piece.size() + 1;
  }
  return parameter;
}

TaskText filled_text(const char* what,
                     const std::string& text,
                     const std::vector<TaskParameter>& each) {
  try {
    return {text, parameter_names(each)};
  } catch (const TaskTextError& error) {
    fail_in(what, text, error.at(), error.what());
  }
}

std::string file_name(const std::string& text) {
  std::string name = text;
  std::ranges::replace_if(
      name,
      [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; },
      '_');
  constexpr size_t kRoomForNumber = 12;
  if (name.size() <= kMaxTaskName - kRoomForNumber)
    return name;
  size_t end = kMaxTaskName - kRoomForNumber;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80)
    --end;
  return name.substr(0, end);
}

std::string sweep_name(const std::vector<TaskParameter>& each,
                       const std::vector<std::string_view>& values) {
  std::string name;
  for (size_t i = 0; i < each.size(); ++i)
    name += cat(i == 0 ? "" : ",", each[i].name, "=", values[i]);
  return file_name(name);
}

void name_tasks(const std::vector<TaskParameter>& each, std::vector<Task>& tasks) {
  std::unordered_map<std::string, int> taken;  // and the number tried last, of "~2"
  size_t at = 0;
  for_each_combination(each, [&](const std::vector<std::string_view>& values) {
    const std::string wanted = sweep_name(each, values);
    std::string name = wanted;
    for (int& number = taken.try_emplace(wanted, 0).first->second; number++ > 0;) {
      name = cat(wanted, "~", number);
      if (taken.try_emplace(name, 1).second)
        break;
    }
    tasks[at++].name = name;
  });
}

}  // namespace

std::vector<Task> tasks_of_sweep(const SweepOptions& options, std::vector<std::string>* warnings) {
  if (options.sweeps.empty())
    throw Error(ErrorCode::invalid_argument, "--sweep: expected NAME=VALUE,…, got none");
  if (options.command.empty() || options.command.front().empty())
    throw Error(
        ErrorCode::invalid_argument,
        "expected a command after --sweep, got none; as --sweep lr=0.1,0.01 -- ./train {lr}");
  TaskTemplate made_from{.task = options.common};
  if (made_from.task.needs.empty())
    made_from.task.needs = default_needs(made_from.task.ranks);
  for (const std::string& text : options.sweeps) {
    made_from.each.push_back(parse_sweep(text, made_from.each));
  }
  for (const std::string& word : options.command)
    made_from.argv.push_back(filled_text("command: ", word, made_from.each));
  for (const auto& [name, value] : options.common.environment)
    made_from.environment.emplace_back(
        name, filled_text(cat("--env ", name, "=").c_str(), value, made_from.each));
  made_from.directory = filled_text("--dir ", options.common.directory, made_from.each);
  if (num_combinations(made_from.each) > kMaxTasks || text_bytes(made_from) > kMaxTaskBytes) {
    throw Error(ErrorCode::invalid_argument,
                cat("--sweep: expected at most ",
                    kMaxTasks,
                    " tasks of ",
                    kMaxTaskBytes >> 20U,
                    " MiB in all, got more"));
  }
  if (warnings != nullptr) {
    for (const std::string& name : unused_parameters(made_from)) {
      warnings->push_back(cat("--sweep ",
                              name,
                              ": the command has no {",
                              name,
                              "}, so tasks that differ in it alone run the same; put {",
                              name,
                              "} where it belongs"));
    }
  }
  std::vector<Task> tasks;
  expand_template(made_from, tasks);
  name_tasks(made_from.each, tasks);
  return tasks;
}

}  // namespace muster
