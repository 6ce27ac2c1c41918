// A text becomes tasks in steps, each of which stops when it has found problems: the tables are
// read as templates, the templates are filled in for every combination of values, the names are
// checked, and `after` is resolved last, when all names are known.
#include "muster/tasks/spec/spec.h"

#include <sys/stat.h>

#include <cerrno>
#include <string_view>
#include <unordered_map>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/tasks/spec/after_names.h"
#include "muster/tasks/spec/problems.h"
#include "muster/tasks/spec/tables.h"
#include "muster/tasks/spec/task_name.h"
#include "muster/tasks/spec/template.h"

namespace muster {
namespace {

constexpr size_t kMaxSpecBytes = size_t{64} << 20;

// A text that is larger than this could not be held with all that is made of it.
void check_spec_text(const std::string& text, SpecProblems& problems) {
  if (text.size() > kMaxSpecBytes) {
    problems.fail({1, 1},
                  cat("expected a spec of at most ",
                      kMaxSpecBytes >> 20U,
                      " MiB, got more; let `each` make many tasks of one"));
  }
}

// Tasks that are too many to hold are found before the first is made.
void check_sizes(const TaskTemplates& templates, SpecProblems& problems) {
  size_t num_tasks = 0;
  size_t bytes = 0;
  for (const TaskTemplate& source : templates) {
    num_tasks += num_combinations(source.each);
    if (num_tasks > kMaxTasks) {
      problems.fail(source.task.at, cat("expected at most ", kMaxTasks, " tasks in all, got more"));
    }
    bytes += text_bytes(source);
    if (bytes > kMaxTaskBytes) {
      problems.fail(
          source.task.at,
          cat("expected tasks of at most ", kMaxTaskBytes >> 20U, " MiB in all, got more"));
    }
  }
}

// "lr=0.1,seed=1".
std::string parameters_text(const Task& task) {
  const auto pair = [](const auto& parameter) {
    return cat(parameter.first, "=", parameter.second);
  };
  return join(mapped(task.parameters, pair), ",");
}

// Two tasks have one name: two tables said it, or one table whose name lacks a parameter.
std::string said_twice(const Task& first, const Task& second) {
  const auto expected = cat("expected each task's name once, got '", second.name, "' twice");
  if (first.at != second.at) {
    return cat(expected, "; the other is at line ", first.at.line, ", column ", first.at.column);
  }
  return cat(expected,
             ", for ",
             parameters_text(first),
             " and for ",
             parameters_text(second),
             "; put every parameter of each into the name");
}

// Says what keeps a text from being a task's name: "expected …, got …"; nothing where it may be
// one.
std::string problem_of_name(std::string_view name) {
  if (name.empty())
    return "expected a task's name, got ''";
  if (name.size() > kMaxTaskName)
    return cat("expected a task's name of at most ", kMaxTaskName, " bytes, got ", name.size());
  if (!is_one_of(name, ".", "..") && all_of(name, fits_file_name))
    return "";
  return cat("expected a task's name that can be a file's (no '/', no control characters), got '",
             name,
             "'");
}

// Each name must be one that a file can have, and no other task's. A table gets one problem,
// however many tasks it makes.
void check_names(const Tasks& tasks, SpecProblems& problems) {
  std::unordered_map<std::string_view, const Task*> seen;
  seen.reserve(tasks.size());
  SpecPosition told{};  // the table that had the last problem
  for (const Task& task : tasks) {
    std::string problem = problem_of_name(task.name);
    const auto [other, is_new] = seen.try_emplace(task.name, &task);
    if (problem.empty() && !is_new)
      problem = said_twice(*other->second, task);
    if (problem.empty() || told == task.at)
      continue;
    told = task.at;
    problems.add(task.at, problem);
  }
}

// Tasks that differ only in a parameter that none of their texts has all run the same.
void warn_of_unused(const TaskTemplate& made_from, const std::string& source, Strings& warnings) {
  for (const auto& name : unused_parameters(made_from)) {
    warnings.push_back(cat(printable(source),
                           ":",
                           made_from.task.at.line,
                           ":",
                           made_from.task.at.column,
                           ": argv, env and dir have no {",
                           name,
                           "} of each",
                           ", so tasks that differ in it alone run the same; put {",
                           name,
                           "} where it belongs"));
  }
}

}  // namespace

// The CPUs are only for machines without GPUs: busy GPUs are waited for.
TaskNeeds default_needs(int ranks) {
  return {{.gpus = 1.0 * ranks}, {.cpus = ranks, .without_gpus = true}};
}

Tasks tasks_of_text(const std::string& text, const std::string& source, Strings* warnings) {
  SpecProblems problems(text, source);
  check_spec_text(text, problems);
  const TaskTemplates templates = read_spec_tables(text, problems);
  problems.throw_if_any();
  check_sizes(templates, problems);
  Tasks tasks;
  Indices begins;  // of each template's tasks
  for (const TaskTemplate& made_from : templates) {
    if (warnings != nullptr)
      warn_of_unused(made_from, source, *warnings);
    begins.push_back(tasks.size());
    expand_template(made_from, tasks);
  }
  begins.push_back(tasks.size());
  check_names(tasks, problems);
  problems.throw_if_any();
  resolve_after(templates, begins, tasks, problems);
  problems.throw_if_any();
  return tasks;
}

// A pipe is read as a file is, so that a spec can be made by a program.
std::string read_spec(const std::string& path) {
  struct stat status{};
  const int problem = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
  const bool is_missing = is_one_of(problem, ENOENT, ENOTDIR);
  if (problem != 0 && !is_missing)
    fail_errno(problem, "cannot read '", printable(path), "'");
  if (!is_missing && (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode)))
    return read_file(path, kMaxSpecBytes);
  const char* what = "neither a file nor a pipe";
  if (is_missing)
    what = "not there";
  else if (S_ISDIR(status.st_mode))
    what = "a folder";
  throw invalid_argument("expected a file of tasks, got '",
                         printable(path),
                         "', which is ",
                         what,
                         "; correct the path");
}

}  // namespace muster
