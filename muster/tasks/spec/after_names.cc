// Tasks are known by their positions while entries are resolved, since there may be millions of
// pairs. An entry whose placeholders are its own task's is filled in and looked up by name; any
// other entry joins two tables by the values that they share.
#include "muster/tasks/spec/after_names.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <ranges>
#include <string>
#include <unordered_map>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/nearest.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

// More pairs than this cannot be held together with the tasks.
constexpr size_t kMaxAfterNames = 5'000'000;
constexpr size_t kMaxCycleShown = 20;
constexpr size_t kMaxNamesCompared = 100'000;  // for the nearest one, in an error

// Resolves the entries of all templates.
class AfterResolver {
 public:
  AfterResolver(const TaskTemplates& templates,
                const Indices& begins,
                Tasks& tasks,
                SpecProblems& problems)
      : templates_(templates),
        begins_(begins),
        tasks_(tasks),
        problems_(problems),
        after_(tasks.size()) {}

  // Names are written into the tasks only when every entry has been resolved.
  void resolve() {
    const auto has_after = [](const TaskTemplate& made_from) {
      return !made_from.after.empty();
    };
    if (none_of(templates_, has_after))
      return;  // most specs: nothing is built for them
    by_name_.reserve(tasks_.size());
    for (const size_t i : indices_of(tasks_))
      by_name_.emplace(tasks_[i].name, i);
    for (const size_t i : indices_of(templates_))
      by_written_.emplace(templates_[i].written_name, i);
    for (const size_t i : indices_of(templates_)) {
      for (const AfterEntry& entry : templates_[i].after)
        resolve_entry(i, entry);
    }
    problems_.throw_if_any();
    write_names();
    report_cycle();
  }

 private:
  using Positions = Indices;

  // `of` is the entry's template. An entry that means no task is told once, and not for each
  // combination.
  void resolve_entry(size_t of, const AfterEntry& entry) {
    if (entry.foreign)
      return join_entry(of, entry);
    size_t at = begins_[of];
    bool told = false;
    for_each_combination(templates_[of].each, [&](const StringViews& values) {
      const size_t task = at++;
      if (told)
        return;
      const auto name = entry.text.with(values);
      if (add_named(task, name, entry) || add_glob(task, name, entry))
        return;
      told = true;
      problems_.add(entry.at, unknown(name));
    });
  }

  // Whether a task has that very name.
  bool add_named(size_t task, const std::string& name, const AfterEntry& entry) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      return false;
    add(task, found->second, entry);
    return true;
  }

  // The tasks whose names fit, looked up once for each pattern.
  const Positions& fitting(const std::string& pattern) {
    const auto [found, is_new] = globs_.try_emplace(pattern);
    if (is_new) {
      found->second = filtered_indices(
          tasks_.size(), [&](size_t i) { return fits_glob(pattern, tasks_[i].name); });
    }
    return found->second;
  }

  // Whether any other task's name fits.
  bool add_glob(size_t task, const std::string& pattern, const AfterEntry& entry) {
    if (!is_glob(pattern))
      return false;
    bool any = false;
    for (const size_t other : fitting(pattern)) {
      if (other == task)
        continue;
      add(task, other, entry);
      any = true;
    }
    return any;
  }

  static bool is_glob(const std::string& name) { return contains(name, '*'); }

  std::string unknown(const std::string& name) const {
    if (is_glob(name))
      return cat("expected the name of some other task in after, got '", name, "'");
    StringViews names;
    for (size_t i = 0; i < std::min(tasks_.size(), kMaxNamesCompared); ++i)
      names.emplace_back(tasks_[i].name);
    const auto meant = did_you_mean(name, names);
    return cat("expected the name of a task in after, got '", name, "'", meant);
  }

  // The entry's placeholders are neither its own task's nor part of another table's name.
  void add_unknown_template(const AfterEntry& entry) {
    const auto written = std::views::keys(by_written_);
    const StringViews names(written.begin(), written.end());
    problems_.add(entry.at,
                  cat("expected, in after, placeholders of this task's each or the name of another "
                      "[[task]] as it is written there, got '",
                      entry.written,
                      "'",
                      did_you_mean(entry.written, names)));
  }

  // The tasks of another [[task]] that have the same values of the parameters that both have.
  void join_entry(size_t of, const AfterEntry& entry) {
    const auto found = by_written_.find(entry.written);
    if (found == by_written_.end())
      return add_unknown_template(entry);
    const size_t other = found->second;
    const Strings shared = shared_parameters(templates_[of], templates_[other]);
    std::map<Strings, Positions> by_values;
    for (size_t i = begins_[other]; i < begins_[other + 1]; ++i)
      by_values[values_of(i, shared)].push_back(i);
    for (size_t i = begins_[of]; i < begins_[of + 1]; ++i) {
      const auto matching = by_values.find(values_of(i, shared));
      if (matching == by_values.end()) {
        problems_.add(entry.at,
                      cat("expected, in after, tasks '",
                          entry.written,
                          "' with the same ",
                          join(shared, ", "),
                          " as ",
                          tasks_[i].name,
                          ", got none"));
        return;
      }
      for (const size_t position : matching->second)
        add(i, position, entry);
    }
  }

  // The names of the parameters that both templates have.
  static Strings shared_parameters(const TaskTemplate& a, const TaskTemplate& b) {
    return mapped(a.each | std::views::filter([&](const TaskParameter& parameter) {
                    return contains(b.each, parameter.name, &TaskParameter::name);
                  }),
                  &TaskParameter::name);
  }

  // The task's values of these parameters, in their order.
  Strings values_of(size_t task, const Strings& parameters) const {
    return mapped(parameters,
                  [&](const auto& parameter) { return tasks_[task].parameters.at(parameter); });
  }

  // The task comes after the other one.
  void add(size_t task, size_t other, const AfterEntry& entry) {
    after_[task].push_back(other);
    if (++num_names_ > kMaxAfterNames) {
      problems_.fail(entry.at,
                     cat("expected at most ",
                         kMaxAfterNames,
                         " names in after of all tasks, got more; put one task between the two "
                         "groups, after all of the one and before all of the other"));
    }
  }

  // Every task is named once, in the order of the entries.
  void write_names() {
    for (const size_t i : indices_of(tasks_)) {
      Positions& positions = after_[i];
      if (positions.size() > 1) {
        IndexSet seen;
        std::erase_if(positions, [&](size_t position) { return !seen.insert(position).second; });
      }
      tasks_[i].after.reserve(positions.size());
      for (const size_t position : positions)
        tasks_[i].after.push_back(tasks_[position].name);
    }
  }

  // A long cycle is shown by its first tasks, and the one that closes it.
  void report_cycle() {
    const Positions cycle = find_cycle(after_);
    if (cycle.empty())
      return;
    Strings names;
    for (size_t i = 0; i < cycle.size(); ++i) {
      if (i == kMaxCycleShown && cycle.size() > kMaxCycleShown + 1) {
        names.push_back(cat("… (", cycle.size() - kMaxCycleShown - 1, " more)"));
        i = cycle.size() - 1;
      }
      names.push_back(tasks_[cycle[i]].name);
    }
    problems_.add(tasks_[cycle.front()].at,
                  cat("expected no cycle in after, got ", join(names, " → ")));
  }

  const TaskTemplates& templates_;
  const Indices& begins_;
  Tasks& tasks_;
  SpecProblems& problems_;
  std::vector<Positions> after_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::unordered_map<std::string_view, size_t> by_written_;
  std::unordered_map<std::string, Positions> globs_;
  size_t num_names_ = 0;
};

}  // namespace

void resolve_after(const TaskTemplates& templates,
                   const Indices& begins,
                   Tasks& tasks,
                   SpecProblems& problems) {
  AfterResolver(templates, begins, tasks, problems).resolve();
}

// Depth first, and without recursion: a chain may be as long as there are tasks.
Indices find_cycle(const std::vector<Indices>& after) {
  enum class Seen : uint8_t { no, on_path, done };
  std::vector<Seen> seen(after.size(), Seen::no);
  Indices path;
  Indices next;  // by step of the path: which of its `after` comes next
  const auto enter = [&](size_t task) {
    seen[task] = Seen::on_path;
    path.push_back(task);
    next.push_back(0);
  };
  for (const size_t start : indices_of(after)) {
    if (seen[start] == Seen::no)
      enter(start);
    while (!path.empty()) {
      const size_t task = path.back();
      if (next.back() == after[task].size()) {
        seen[task] = Seen::done;
        path.pop_back();
        next.pop_back();
        continue;
      }
      const size_t other = after[task][next.back()++];
      if (seen[other] == Seen::no) {
        enter(other);
      } else if (seen[other] == Seen::on_path) {
        path.erase(path.begin(), std::ranges::find(path, other));
        path.push_back(other);
        return path;
      }
    }
  }
  return {};
}

// After a mismatch the last star takes one more character, and what is behind it is tried again.
bool fits_glob(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = npos;      // the last '*' met
  size_t behind_star = 0;  // of the text, behind what the star stands for
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind_star = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != npos) {
      p = star + 1;
      t = ++behind_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == npos;
}

}  // namespace muster
