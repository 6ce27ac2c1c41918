// Templates from which a grid of tasks is made: texts with placeholders, and the values of each
// parameter. A [[task]] of a spec and a sweep are one each; expand_template makes the tasks. Knows
// no files; pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/placeholders.h"
#include "muster/tasks/task.h"

namespace muster {

inline constexpr size_t kMaxTasks = 1'000'000;
inline constexpr size_t kMaxTaskBytes = size_t{1} << 31;  // of all texts of all tasks together

struct TaskParameter {
  std::string name{};
  Strings values{};  // never empty
};

using TaskParameters = std::vector<TaskParameter>;

// An entry of `after`, before it is known which tasks it means.
struct AfterEntry {
  std::string written{};
  // It has a placeholder that its own task has not: it is another [[task]]'s name as written, and
  // `text` is empty.
  bool foreign = false;
  TaskText text{};
  SpecPosition at{};
};

struct TaskTemplate {
  Task task{};  // what all tasks have in common
  std::string written_name{};
  TaskText name{};
  std::vector<TaskText> argv{};
  std::vector<std::pair<std::string, TaskText>> environment{};
  TaskText directory{};
  std::vector<AfterEntry> after{};
  TaskParameters each{};
};

using TaskTemplates = std::vector<TaskTemplate>;

StringViews parameter_names(const TaskParameters& each);

// How many tasks there will be; kMaxTasks + 1 for more than kMaxTasks.
size_t num_combinations(const TaskParameters& each);

// About how many bytes the template's tasks will have, at most.
size_t text_bytes(const TaskTemplate& source);

// The parameters that neither argv nor environment nor directory has: tasks that differ in them
// alone run the same.
Strings unused_parameters(const TaskTemplate& source);

// Calls `use(values)` for every combination in order, the last parameter's value changing fastest.
template <class Use>
void for_each_combination(const TaskParameters& each, const Use& use);

// Appends the template's tasks, without `after`. Their number was checked before.
void expand_template(const TaskTemplate& source, Tasks& tasks);

}  // namespace muster

template <class Use>
void muster::for_each_combination(const TaskParameters& each, const Use& use) {
  Indices digits(each.size(), 0);
  StringViews values;
  values.reserve(each.size());
  for (const TaskParameter& parameter : each)
    values.emplace_back(parameter.values.front());
  for (;;) {
    use(std::as_const(values));
    size_t place = each.size();
    while (place > 0 && ++digits[place - 1] == each[place - 1].values.size()) {
      digits[place - 1] = 0;
      values[place - 1] = each[place - 1].values.front();
      --place;
    }
    if (place == 0)
      return;
    values[place - 1] = each[place - 1].values[digits[place - 1]];
  }
}
