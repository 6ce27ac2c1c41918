// A template is filled in once for each combination of values. How much that will be is reckoned
// from the lengths of its texts, before anything is made.
#include "muster/tasks/spec/template.h"

#include <algorithm>
#include <cstdint>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// The template's task with these values.
Task task_with(const TaskTemplate& source, const std::vector<std::string_view>& values) {
  Task task = source.task;
  task.name = source.name.with(values);
  task.argv.reserve(source.argv.size());
  for (const TaskText& word : source.argv)
    task.argv.push_back(word.with(values));
  for (const auto& [name, text] : source.environment)
    task.environment[name] = text.with(values);
  task.directory = source.directory.with(values);
  for (size_t i = 0; i < values.size(); ++i)
    task.parameters[source.each[i].name] = values[i];
  return task;
}

}  // namespace

std::vector<std::string_view> parameter_names(const std::vector<TaskParameter>& each) {
  return mapped(each,
                [](const TaskParameter& parameter) { return std::string_view(parameter.name); });
}

// The name alone does not make tasks differ in what they do.
std::vector<std::string> unused_parameters(const TaskTemplate& source) {
  std::vector<std::string> unused;
  for (size_t i = 0; i < source.each.size(); ++i) {
    const auto has_it = [&](const TaskText& text) {
      return text.uses(i);
    };
    const auto variable_has_it = [&](const auto& variable) {
      return has_it(variable.second);
    };
    const bool used = has_it(source.directory) || std::ranges::any_of(source.argv, has_it) ||
                      std::ranges::any_of(source.environment, variable_has_it);
    if (!used)
      unused.push_back(source.each[i].name);
  }
  return unused;
}

// The product may be too large for any number: it is not reckoned beyond the limit.
size_t num_combinations(const std::vector<TaskParameter>& each) {
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
  for (const TaskParameter& parameter : source.each) {
    for (const std::string& value : parameter.values)
      longest = std::max(longest, value.size());
  }
  return num_combinations(source.each) * (bytes + num_filled * longest);
}

void expand_template(const TaskTemplate& source, std::vector<Task>& tasks) {
  for_each_combination(source.each, [&](const std::vector<std::string_view>& values) {
    tasks.push_back(task_with(source, values));
  });
}

namespace {

// Whether a number has zeros before it, as "01" and "-01".
bool begins_with_zero(std::string_view number) {
  const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
  return digits.size() > 1 && digits[0] == '0';
}

// How many characters each number of the range has, as shells count: 01..10 has two digits
// everywhere. 0: as many as each needs.
size_t width_of_range(std::string_view first, std::string_view last) {
  const bool is_padded = begins_with_zero(first) || begins_with_zero(last);
  return is_padded ? std::max(first.size(), last.size()) : 0;
}

// The number with zeros before its digits, behind its sign.
std::string padded(int64_t value, size_t width) {
  std::string digits = cat(value);
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  if (digits.size() < width)
    digits.insert(sign, width - digits.size(), '0');
  return digits;
}

}  // namespace

// Nothing but two whole numbers with dots between them is a range.
std::optional<std::vector<std::string>> range_values(std::string_view text) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos)
    return std::nullopt;
  const auto first = parse_int(text.substr(0, dots));
  const auto last = parse_int(text.substr(dots + 2));
  if (!first || !last)
    return std::nullopt;
  if (*last < *first)
    throw Error(ErrorCode::invalid_argument, cat("expected a range that counts up, got ", text));
  const uint64_t difference = static_cast<uint64_t>(*last) - static_cast<uint64_t>(*first);
  if (difference >= kMaxTasks)
    throw Error(ErrorCode::invalid_argument,
                cat("expected at most ", kMaxTasks, " values, got ", text));
  const size_t width = width_of_range(text.substr(0, dots), text.substr(dots + 2));
  std::vector<std::string> values;
  for (int64_t value = *first;; ++value) {
    values.push_back(padded(value, width));
    if (value == *last)
      return values;
  }
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

// The task's folder of logs has its name.
std::string problem_of_name(std::string_view name) {
  if (name.empty())
    return "expected a task's name, got ''";
  if (name.size() > kMaxTaskName)
    return cat("expected a task's name of at most ", kMaxTaskName, " bytes, got ", name.size());
  const bool is_folder = is_one_of(name, ".", "..");
  const bool has_slash = name.find('/') != std::string_view::npos;
  if (!is_folder && !has_slash && std::ranges::none_of(name, is_control))
    return "";
  return cat("expected a task's name that can be a file's (no '/', no control characters), got '",
             name,
             "'");
}

}  // namespace muster
