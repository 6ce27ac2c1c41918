// A sweep is one template of tasks, as a [[task]] of a spec file is. Only the names of the tasks
// are made here, of the parameters and their values. An error repeats the flag with a caret under
// the character that is wrong.
#include "muster/tasks/spec/sweep.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "muster/base/caret.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/utf8.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/range.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/task_name.h"
#include "muster/tasks/spec/template.h"

namespace muster {
namespace {

constexpr auto kSweepFlag = "--sweep ";

// Throws: invalid_argument that repeats `flag` and its text, and points at the byte `at` of the
// text.
[[noreturn]] void fail_in(std::string_view flag,
                          const std::string& text,
                          size_t at,
                          const std::string& problem) {
  throw invalid_argument(pointing_at(flag, text, at, problem));
}

bool is_number_text(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

// "1..x" and "0.1..0.5" were meant as ranges, "../data" and "a..b" were not.
bool has_number_beside_dots(const std::string& piece) {
  const size_t dots = piece.find("..");
  return dots != npos &&
         (is_number_text(piece.substr(0, dots)) || is_number_text(piece.substr(dots + 2)));
}

// The values of one piece between commas, which begins at the byte `at` of the flag's text.
Strings values_of_piece(const std::string& piece, const std::string& text, size_t at) {
  if (piece.empty())
    fail_in(kSweepFlag, text, at, "expected a value or a range (1..5), got nothing");
  try {
    if (auto values = range_values(piece))
      return *std::move(values);
  } catch (const Error& error) {
    fail_in(kSweepFlag, text, at, error.message());
  }
  if (!has_number_beside_dots(piece))
    return {piece};
  fail_in(kSweepFlag,
          text,
          at,
          cat("expected a range of whole numbers, as 1..5, got ",
              piece,
              "; other values one by one, with commas, and a text that has '..' in a spec file"));
}

// "lr=0.1,0.01" as a parameter that none of the others is.
TaskParameter parse_sweep(const std::string& text, const TaskParameters& others) {
  const size_t equals = text.find('=');
  const auto name = text.substr(0, equals);
  if (!is_parameter_name(name))
    fail_in(
        kSweepFlag, text, 0, "expected NAME=VALUE,… with a name of letters, digits, '_' and '-'");
  if (equals == npos)
    fail_in(kSweepFlag, text, text.size(), "expected '=' and values, got nothing");
  if (contains(others, name, &TaskParameter::name))
    fail_in(kSweepFlag, text, 0, cat("expected each name once, got ", name, " again"));
  TaskParameter parameter{.name = name};
  size_t at = equals + 1;
  for (const auto& piece : split(std::string_view(text).substr(at), ',')) {
    for (std::string& value : values_of_piece(piece, text, at))
      parameter.values.push_back(std::move(value));
    at += piece.size() + 1;
  }
  return parameter;
}

// A text of the command line with its placeholders known. Errors repeat it behind `flag`.
TaskText filled_text(std::string_view flag, const std::string& text, const TaskParameters& each) {
  try {
    return {text, parameter_names(each)};
  } catch (const TaskTextError& error) {
    fail_in(flag, text, error.at(), error.what());
  }
}

// "lr=0.1,seed=1" as a name that a file can have, with room for a number behind it.
std::string sweep_name(const TaskParameters& each, const StringViews& values) {
  constexpr size_t kRoomForNumber = 12;  // bytes
  std::string name;
  for (const size_t i : indices_of(each))
    name += cat(i == 0 ? "" : ",", each[i].name, "=", values[i]);
  std::ranges::replace_if(name, std::not_fn(fits_file_name), '_');
  return std::string(cut_text(name, kMaxTaskName - kRoomForNumber));
}

// Names the tasks in their order. Names that have become the same are told apart by "~2", "~3" …
void name_tasks(const TaskParameters& each, Tasks& tasks) {
  std::unordered_map<std::string, int> taken;  // by name: the last number tried behind it
  size_t at = 0;
  for_each_combination(each, [&](const StringViews& values) {
    const auto wanted = sweep_name(each, values);
    std::string name = wanted;
    while (!taken.try_emplace(name, 1).second)
      name = cat(wanted, "~", ++taken[wanted]);
    tasks[at++].name = name;
  });
}

Strings warnings_of(const TaskTemplate& made_from) {
  Strings warnings;
  for (const TaskParameter& parameter : made_from.each) {
    if (parameter.values.size() == 1)
      warnings.push_back(cat(kSweepFlag,
                             parameter.name,
                             ": has one value, '",
                             printable(parameter.values[0]),
                             "'; several are written with commas or as a range (1..5)"));
  }
  for (const auto& name : unused_parameters(made_from)) {
    warnings.push_back(cat(kSweepFlag,
                           name,
                           ": the command has no {",
                           name,
                           "}, so tasks that differ in it alone run the same; put {",
                           name,
                           "} where it belongs"));
  }
  return warnings;
}

// The template of the flags' tasks; they have no names yet. Throws: as tasks_of_sweep.
TaskTemplate template_of(const SweepOptions& options) {
  TaskTemplate made_from{.task = options.common};
  if (made_from.task.needs.empty())
    made_from.task.needs = default_needs(made_from.task.ranks);
  for (const auto& text : options.sweeps)
    made_from.each.push_back(parse_sweep(text, made_from.each));
  made_from.argv = mapped(options.command, [&](const auto& word) {
    return filled_text("command: ", word, made_from.each);
  });
  for (const auto& [name, value] : options.common.environment)
    made_from.environment.emplace_back(
        name, filled_text(cat("--env ", name, "="), value, made_from.each));
  made_from.directory = filled_text("--dir ", options.common.directory, made_from.each);
  return made_from;
}

}  // namespace

// The number of tasks is checked before any is made.
Tasks tasks_of_sweep(const SweepOptions& options, Strings* warnings) {
  if (options.sweeps.empty())
    throw invalid_argument("--sweep: expected NAME=VALUE,…, got none");
  if (options.command.empty() || options.command.front().empty())
    throw invalid_argument(
        "expected a command after --sweep, got none; as --sweep lr=0.1,0.01 -- ./train {lr}");
  const TaskTemplate made_from = template_of(options);
  const bool too_many = num_combinations(made_from.each) > kMaxTasks;
  if (too_many || text_bytes(made_from) > kMaxTaskBytes) {
    throw invalid_argument("--sweep: expected at most ",
                           kMaxTasks,
                           " tasks of ",
                           kMaxTaskBytes >> 20U,
                           " MiB in all, got more");
  }
  if (warnings != nullptr)
    *warnings = warnings_of(made_from);
  Tasks tasks;
  expand_template(made_from, tasks);
  name_tasks(made_from.each, tasks);
  return tasks;
}

}  // namespace muster
