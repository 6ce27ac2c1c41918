// A sweep is one template of tasks, as a [[task]] of a spec file is, and goes the same way from
// there. Only the names are made here, of the parameters and their values. What is wrong is shown
// by the flag's own text with a caret.
#include "muster/tasks/spec/sweep.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/template.h"

namespace muster {
namespace {

// Throws: invalid_argument that points at the byte `at` of a flag's text.
[[noreturn]] void fail_in(const char* flag,
                          const std::string& text,
                          size_t at,
                          const std::string& problem) {
  const std::string shown = cat(flag, text);
  const std::string before = cat(flag, text.substr(0, at));
  throw Error(ErrorCode::invalid_argument,
              cat(flag,
                  printable(text),
                  ": ",
                  printable(problem),
                  " (at character ",
                  at + 1,
                  ")",
                  caret_lines(shown, count_characters(before) + 1)));
}

bool is_number_text(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

// "1..x" and "0.1..0.5", unlike "../data" and "a..b": there is a number beside the dots, and yet no
// range.
bool looks_like_range(const std::string& piece) {
  const size_t dots = piece.find("..");
  if (dots == std::string::npos)
    return false;
  const std::string first = piece.substr(0, dots);
  const std::string last = piece.substr(dots + 2);
  const bool is_range = parse_int(first) && parse_int(last);
  return !is_range && (is_number_text(first) || is_number_text(last));
}

// Errors repeat the flag as it was given.
constexpr const char* kSweepFlag = "--sweep ";

// The values of one piece between commas, which begins at the byte `at` of the flag's text.
std::vector<std::string> values_of_piece(const std::string& piece,
                                         const std::string& text,
                                         size_t at) {
  if (piece.empty())
    fail_in(kSweepFlag, text, at, "expected a value or a range (1..5), got nothing");
  if (looks_like_range(piece)) {
    fail_in(kSweepFlag,
            text,
            at,
            cat("expected a range of whole numbers, as 1..5, got ",
                piece,
                "; other values one by one, with commas, and a text that has '..' in a spec file"));
  }
  try {
    return range_values(piece).value_or(std::vector<std::string>{piece});
  } catch (const Error& error) {
    fail_in(kSweepFlag, text, at, error.message());
  }
}

// "lr=0.1,0.01" as a parameter that none of the others is.
TaskParameter parse_sweep(const std::string& text, const std::vector<TaskParameter>& others) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (!is_parameter_name(name))
    fail_in(
        kSweepFlag, text, 0, "expected NAME=VALUE,… with a name of letters, digits, '_' and '-'");
  if (equals == std::string::npos)
    fail_in(kSweepFlag, text, text.size(), "expected '=' and values, got nothing");
  if (std::ranges::find(others, name, &TaskParameter::name) != others.end())
    fail_in(kSweepFlag, text, 0, cat("expected each name once, got ", name, " again"));
  TaskParameter parameter{.name = name};
  size_t at = equals + 1;
  for (const std::string& piece : split(std::string_view(text).substr(at), ',')) {
    for (std::string& value : values_of_piece(piece, text, at))
      parameter.values.push_back(std::move(value));
    at += piece.size() + 1;
  }
  return parameter;
}

// A text of the command line with its placeholders known. `what` is named in errors.
TaskText filled_text(const char* what,
                     const std::string& text,
                     const std::vector<TaskParameter>& each) {
  try {
    return {text, parameter_names(each)};
  } catch (const TaskTextError& error) {
    fail_in(what, text, error.at(), error.what());
  }
}

// The text as a name that a file can have, with room for a number behind it.
std::string file_name(const std::string& text) {
  constexpr size_t kRoomForNumber = 12;
  std::string name = text;
  std::ranges::replace_if(name, [](char c) { return c == '/' || is_control(c); }, '_');
  return std::string(cut_text(name, kMaxTaskName - kRoomForNumber));
}

// "lr=0.1,seed=1", as a file can be named.
std::string sweep_name(const std::vector<TaskParameter>& each,
                       const std::vector<std::string_view>& values) {
  std::string name;
  for (size_t i = 0; i < each.size(); ++i)
    name += cat(i == 0 ? "" : ",", each[i].name, "=", values[i]);
  return file_name(name);
}

// Names the tasks in their order. Names that have become the same are told apart by "~2", "~3" …
void name_tasks(const std::vector<TaskParameter>& each, std::vector<Task>& tasks) {
  std::unordered_map<std::string, int> taken;  // by name: the last number tried behind it
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

std::vector<std::string> warnings_of(const TaskTemplate& made_from) {
  std::vector<std::string> warnings;
  for (const TaskParameter& parameter : made_from.each) {
    if (parameter.values.size() == 1)
      warnings.push_back(cat("--sweep ",
                             parameter.name,
                             ": has one value, '",
                             printable(parameter.values[0]),
                             "'; several are written with commas or as a range (1..5)"));
  }
  for (const std::string& name : unused_parameters(made_from)) {
    warnings.push_back(cat("--sweep ",
                           name,
                           ": the command has no {",
                           name,
                           "}, so tasks that differ in it alone run the same; put {",
                           name,
                           "} where it belongs"));
  }
  return warnings;
}

}  // namespace

// The number of tasks is checked before any is made.
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
  for (const std::string& text : options.sweeps)
    made_from.each.push_back(parse_sweep(text, made_from.each));
  made_from.argv = mapped(options.command, [&](const std::string& word) {
    return filled_text("command: ", word, made_from.each);
  });
  for (const auto& [name, value] : options.common.environment)
    made_from.environment.emplace_back(
        name, filled_text(cat("--env ", name, "=").c_str(), value, made_from.each));
  made_from.directory = filled_text("--dir ", options.common.directory, made_from.each);
  const bool too_many = num_combinations(made_from.each) > kMaxTasks;
  if (too_many || text_bytes(made_from) > kMaxTaskBytes) {
    throw Error(ErrorCode::invalid_argument,
                cat("--sweep: expected at most ",
                    kMaxTasks,
                    " tasks of ",
                    kMaxTaskBytes >> 20U,
                    " MiB in all, got more"));
  }
  if (warnings != nullptr)
    *warnings = warnings_of(made_from);
  std::vector<Task> tasks;
  expand_template(made_from, tasks);
  name_tasks(made_from.each, tasks);
  return tasks;
}

}  // namespace muster
