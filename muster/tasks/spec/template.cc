// A template is filled in once for each combination of values. How much that will be is reckoned
// from the lengths of its texts, before anything is made.
#include "muster/tasks/spec/template.h"

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {
namespace {

// The template's task with these values.
Task task_with(const TaskTemplate& source, const StringViews& values) {
  Task task = source.task;
  task.name = source.name.with(values);
  task.argv.reserve(source.argv.size());
  for (const TaskText& word : source.argv)
    task.argv.push_back(word.with(values));
  for (const auto& [name, text] : source.environment)
    task.environment[name] = text.with(values);
  task.directory = source.directory.with(values);
  for (const size_t i : indices_of(values))
    task.parameters[source.each[i].name] = values[i];
  return task;
}

}  // namespace

StringViews parameter_names(const TaskParameters& each) {
  return mapped(each,
                [](const TaskParameter& parameter) { return std::string_view(parameter.name); });
}

// The name alone does not make tasks differ in what they do.
Strings unused_parameters(const TaskTemplate& source) {
  Strings unused;
  for (const size_t i : indices_of(source.each)) {
    const auto has_it = [&](const TaskText& text) {
      return text.uses(i);
    };
    const auto variable_has_it = [&](const auto& variable) {
      return has_it(variable.second);
    };
    const bool used = has_it(source.directory) || any_of(source.argv, has_it) ||
                      any_of(source.environment, variable_has_it);
    if (!used)
      unused.push_back(source.each[i].name);
  }
  return unused;
}

// The product may be too large for any number: it is not reckoned beyond the limit.
size_t num_combinations(const TaskParameters& each) {
  size_t count = 1;
  for (const TaskParameter& parameter : each) {
    if (parameter.values.size() > kMaxTasks / count)
      return kMaxTasks + 1;
    count *= parameter.values.size();
  }
  return count;
}

// The longest value stands for every placeholder and for every parameter: at most so much.
size_t text_bytes(const TaskTemplate& source) {
  size_t bytes = sizeof(Task);
  size_t num_filled = source.each.size();
  const auto add = [&](const TaskText& text) {
    bytes += text.size() + sizeof(std::string);
    num_filled += text.num_placeholders();
  };
  add(source.name);
  add(source.directory);
  for (const TaskText& word : source.argv)
    add(word);
  for (const auto& [name, text] : source.environment)
    add(text);
  size_t longest = 0;
  for (const TaskParameter& parameter : source.each)
    longest = max_of(parameter.values, std::ranges::size, longest);
  return num_combinations(source.each) * (bytes + num_filled * longest);
}

void expand_template(const TaskTemplate& source, Tasks& tasks) {
  for_each_combination(
      source.each, [&](const StringViews& values) { tasks.push_back(task_with(source, values)); });
}

}  // namespace muster
