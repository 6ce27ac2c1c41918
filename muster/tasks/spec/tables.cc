// A table is read key by key, and each problem is taken down with its place, so that one reading
// finds as many as it can. What is wrong is given a value that lets the reading go on; it is never
// used.
#include "muster/tasks/spec/tables.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/toml_text.h"
#include "muster/launch/check_launch.h"
#include "muster/placement/selection/selection.h"
#include "muster/tasks/spec/needs.h"
#include "muster/tasks/spec/range.h"
#include "muster/tasks/spec/spec.h"
#include "muster/tasks/spec/values.h"

namespace muster {
namespace {

// Larger numbers are slips rather than wishes.
constexpr int kMaxTaskRanks = 4096;
constexpr int kMaxRetries = 1000;
constexpr int kMaxPriority = 1'000'000;

const StringViews& task_keys() {
  static const StringViews keys = {"name",
                                   "argv",
                                   "each",
                                   "env",
                                   "dir",
                                   "needs",
                                   "on",
                                   "ranks",
                                   "after",
                                   "priority",
                                   "retries",
                                   "back_off",
                                   "time_limit"};
  return keys;
}

// The keys that [defaults] may have.
StringViews default_keys() {
  StringViews keys = task_keys();
  for (const char* const key : {"name", "each", "after"})
    std::erase(keys, key);
  return keys;
}

// Reads one [[task]]; a key that it has not is taken from [defaults].
class TableReader {
 public:
  TableReader(const toml::table& table, const toml::table& defaults, const SpecValues& values)
      : table_(table),
        defaults_(defaults),
        values_(values),
        at_(position_of(table.source().begin)) {}

  // `each` goes first: it says which placeholders the texts may have.
  TaskTemplate read() {
    values_.check_keys(table_, "[[task]]", task_keys());
    read_each();
    parameters_ = parameter_names(made_.each);
    read_name();
    read_argv();
    read_environment();
    if (const toml::node* const dir = find("dir")) {
      if (auto text = values_.text(*dir, "dir"))
        made_.directory = filled(*dir, *text);
    }
    read_numbers();
    read_needs();
    check_variables();
    read_on();
    read_after();
    return std::move(made_);
  }

 private:
  const toml::node* find(const char* key) const {
    const toml::node* const own = table_.get(key);
    return own != nullptr ? own : defaults_.get(key);
  }

  // A problem of the whole table, or of one node.
  void problem(const std::string& text) const { values_.problems().add(at_, text); }
  void problem_at(const toml::node& node, const std::string& text) const {
    values_.problems().add(position_of(node.source().begin), text);
  }

  // The text with its placeholders known; empty when it has a problem, which is told then.
  TaskText filled(const toml::node& node, const std::string& text) const {
    try {
      return {text, parameters_};
    } catch (const TaskTextError& error) {
      add_inside(node, text, error);
      return {};
    }
  }

  // The problem of a byte within the text, for which its own character is shown.
  void add_inside(const toml::node& node,
                  const std::string& text,
                  const TaskTextError& error) const {
    SpecProblems& problems = values_.problems();
    problems.add(problems.inside(position_of(node.source().begin), text, error.at()), error.what());
  }

  // The parameters in the order of the file, which a table of toml++ has lost.
  void read_each() {
    const toml::node* const value = table_.get("each");
    if (value == nullptr)
      return;
    const toml::table& each = values_.table(*value, "a table ({ lr = [0.1, 0.01] }) for each");
    std::vector<std::pair<SpecPosition, TaskParameter>> found;
    for (const auto& [key, values] : each) {
      const SpecPosition at = position_of(key.source().begin);
      if (!is_parameter_name(key.str())) {
        values_.problems().add(
            at,
            cat("expected a parameter's name (letters, digits, '_' and '-'), got '",
                key.str(),
                "'"));
      }
      TaskParameter parameter{.name = std::string(key.str()), .values = parameter_values(values)};
      if (parameter.values.empty())
        parameter.values.emplace_back();  // told; {name} is known all the same
      found.emplace_back(at, std::move(parameter));
    }
    std::ranges::sort(
        found, {}, [](const auto& one) { return std::pair(one.first.line, one.first.column); });
    for (auto& [at, parameter] : found)
      made_.each.push_back(std::move(parameter));
  }

  static constexpr auto kEachRule = R"(a list of values or a range ("1..5") in each)";

  // A parameter's values; none when there is a problem, which is told then.
  Strings parameter_values(const toml::node& node) const {
    if (const auto text = node.value_exact<std::string>())
      return values_in_range(node, *text);
    Strings values;
    StringSet seen;  // one value twice would be one name twice
    for (const toml::node& one : values_.list(node, kEachRule)) {
      const auto value = values_.scalar(one, "a value in each");
      values.push_back(value.value_or(""));
      if (value && !seen.insert(*value).second)
        problem_at(one,
                   cat("expected each value once in each, got ", *value, " twice; leave one out"));
    }
    return values;
  }

  Strings values_in_range(const toml::node& node, const std::string& text) const {
    try {
      if (auto range = range_values(text))
        return std::move(*range);
      values_.wrong(node, kEachRule);
    } catch (const Error& error) {
      problem_at(node, error.message());
    }
    return {};
  }

  // A problem of the task is shown at its name, once that is known.
  void read_name() {
    made_.task.at = at_;
    const toml::node* const node = table_.get("name");
    if (node == nullptr)
      return problem("expected name in [[task]], got none");
    made_.task.at = position_of(node->source().begin);
    if (auto text = values_.text(*node, "name")) {
      made_.name = filled(*node, *text);
      made_.written_name = std::move(*text);
    }
  }

  // Numbers among the words are taken as they are written. A word with a problem leaves its place,
  // so that those behind it keep theirs.
  void read_argv() {
    const toml::node* const node = find("argv");
    if (node == nullptr)
      return problem(R"(expected argv = ["PROGRAM", …] in [[task]], got none)");
    constexpr auto kRule = R"(the program and its arguments (["./train", "--lr", "0.1"]) for argv)";
    for (const toml::node& word : values_.list(*node, kRule)) {
      const auto text = values_.scalar(word, "argv");
      made_.argv.push_back(text ? filled(word, *text) : TaskText());
      if (made_.argv.size() == 1 && text && text->empty())
        values_.wrong(word, "a program as argv's first");
    }
  }

  // The table's variables win over those of [defaults].
  void read_environment() {
    read_variables(defaults_.get("env"));
    read_variables(table_.get("env"));
  }

  // A variable that is there already is replaced.
  void read_variables(const toml::node* node) {
    if (node == nullptr)
      return;
    const toml::table& variables = values_.table(*node, R"(a table ({ NAME = "value" }) for env)");
    for (const auto& [key, value] : variables) {
      const std::string name(key.str());
      const SpecPosition at = position_of(key.source().begin);
      if (!is_variable_name(name)) {
        values_.problems().add(
            at,
            cat("expected a variable's name in env (letters, digits and '_'), got '", name, "'"));
      }
      variables_.emplace_back(name, at);
      const auto text = values_.scalar(value, "env");
      std::erase_if(made_.environment, [&](const auto& pair) { return pair.first == name; });
      made_.environment.emplace_back(name, text ? filled(value, *text) : TaskText());
    }
  }

  // Returns what sets the variable in spite of the spec; empty: nothing does.
  const char* who_sets(const std::string& name) const {
    const auto has_gpus = [](const TaskNeed& need) {
      return need.gpus > 0;
    };
    const bool is_for_gpus = name == "CUDA_VISIBLE_DEVICES";
    if (contains(kVariablesOfTask, name))
      return "for each task";
    if (made_.task.ranks > 1 && is_set_for_ranks(name))
      return "for each rank";
    return is_for_gpus && all_of(made_.task.needs, has_gpus) ? "for the task's GPUs" : "";
  }

  // After needs and ranks, of which the variables tell.
  void check_variables() const {
    for (const auto& [name, at] : variables_) {
      const std::string_view who = who_sets(name);
      if (!who.empty())
        values_.problems().add(at,
                               cat("expected no variable in env that muster sets ",
                                   who,
                                   ", got ",
                                   name,
                                   "; leave it out"));
    }
  }

  // A number with a problem keeps its default, which is never used.
  void read_numbers() {
    Task& task = made_.task;
    const auto integer = [&](const char* key, int& target, int least, int most) {
      if (const toml::node* const node = find(key))
        target = values_.integer(*node, key, least, most).value_or(target);
    };
    integer("ranks", task.ranks, 1, kMaxTaskRanks);
    integer("priority", task.priority, -kMaxPriority, kMaxPriority);
    integer("retries", task.retries, 0, kMaxRetries);
    if (const toml::node* const node = find("back_off"))
      task.back_off = values_.duration(*node, "back_off").value_or(task.back_off);
    if (const toml::node* const node = find("time_limit")) {
      task.time_limit = values_.duration(*node, "time_limit");
      if (task.time_limit && task.time_limit->count() == 0)
        values_.wrong(*node, "more than no time for time_limit");
    }
  }

  void read_needs() {
    Task& task = made_.task;
    const toml::node* const needs = find("needs");
    const toml::node* const ranks = find("ranks");
    if (ranks != nullptr)
      task.places.ranks = position_of(ranks->source().begin);
    task.needs = default_needs(task.ranks);
    if (needs != nullptr) {
      task.places.needs = position_of(needs->source().begin);
      task.needs = read_alternatives(*needs, task.ranks, values_);
    }
  }

  // After needs, whose GPUs it chooses among.
  void read_on() {
    Task& task = made_.task;
    const toml::node* const on = find("on");
    if (on == nullptr)
      return;
    task.places.on = position_of(on->source().begin);
    const auto text = values_.text(*on, "on");
    if (!text)
      return;
    task.on = *text;
    if (task.on.empty())
      values_.wrong(*on, R"(GPUs for on ("0,2", "model=A100"), which is left out for any)");
    try {
      Selection(task.on);
    } catch (const SelectionError& error) {
      SpecProblems& problems = values_.problems();
      problems.add(problems.inside(task.places.on, task.on, error.at()),
                   cat("on: ", error.problem()));
    }
    const auto has_gpus = [](const TaskNeed& need) {
      return need.gpus > 0;
    };
    if (!task.needs.empty() && none_of(task.needs, has_gpus))
      values_.wrong(*on, "needs with gpus beside on");
  }

  // A single name may stand without a list.
  void read_after() {
    const toml::node* const node = table_.get("after");
    if (node == nullptr)
      return;
    if (node->is_string())
      return read_after_entry(*node);
    const toml::array* const list = node->as_array();
    if (list == nullptr)
      return values_.wrong(*node, "a list of tasks' names for after");
    for (const toml::node& entry : *list)
      read_after_entry(entry);
  }

  // An entry with a placeholder that this table has not is another table's name as written.
  void read_after_entry(const toml::node& node) {
    auto text = values_.text(node, "after");
    if (!text)
      return;
    AfterEntry entry{.at = position_of(node.source().begin)};
    try {
      entry.foreign = any_of(placeholders_of(*text),
                             [&](std::string_view name) { return !contains(parameters_, name); });
      if (!entry.foreign)
        entry.text = TaskText(*text, parameters_);
    } catch (const TaskTextError& error) {
      return add_inside(node, *text, error);
    }
    entry.written = std::move(*text);
    made_.after.push_back(std::move(entry));
  }

  const toml::table& table_;
  const toml::table& defaults_;
  const SpecValues& values_;
  const SpecPosition at_;
  TaskTemplate made_;
  StringViews parameters_;                                       // names in made_.each
  std::vector<std::pair<std::string, SpecPosition>> variables_;  // names in env
};

// Text that is no TOML ends the reading.
toml::table parse_spec(const std::string& text, SpecProblems& problems) {
  try {
    return parse_toml(text);
  } catch (const TomlError& error) {
    problems.fail({error.line, error.column},
                  cat("expected ", error.expected, ", got ", error.got));
  }
}

// The table [defaults]; empty: there is none.
const toml::table& find_defaults(const toml::table& document, const SpecValues& values) {
  static const toml::table none;
  const toml::node* const node = document.get("defaults");
  if (node == nullptr)
    return none;
  const toml::table& defaults = values.table(*node, "a table [defaults]");
  values.check_keys(defaults, "[defaults]", default_keys());
  return defaults;
}

}  // namespace

// Tables that are not of this shape are told, and the others are read all the same.
TaskTemplates read_spec_tables(const std::string& text, SpecProblems& problems) {
  const toml::table document = parse_spec(text, problems);
  const SpecValues values(problems);
  values.check_keys(document, "the file", {"task", "defaults"});
  const toml::table& defaults = find_defaults(document, values);
  const toml::node* const tasks = document.get("task");
  TaskTemplates templates;
  if (tasks == nullptr) {
    problems.add({1, 1}, "expected [[task]] entries, got none");
    return templates;
  }
  for (const toml::node& entry : values.list(*tasks, "[[task]] entries, each in double brackets")) {
    if (const toml::table* const table = entry.as_table()) {
      templates.push_back(TableReader(*table, defaults, values).read());
    } else {
      values.wrong(entry, "a table [[task]]");
    }
  }
  return templates;
}

}  // namespace muster
