// Arrays are made level by level, so that all that a task comes after is in an array already. In a
// level, tasks that ask for the same and come after the same are one array. Where each task comes
// after one element of another array, the new array gets the same indices (aftercorr), if no two
// are after the same element.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"
#include "muster/device/numbers.h"
#include "muster/tasks/slurm/element.h"
#include "muster/tasks/slurm/script.h"
#include "muster/tasks/slurm/submit.h"

namespace muster {
namespace {

constexpr size_t kMaxDependencies = 1000;
constexpr int kWholeArray = -1;

// The array and the index that a task has got.
struct ElementPlace {
  size_t array = 0;
  int index = 0;
};

// Makes the plan of one submission.
class SlurmPlanner {
 public:
  SlurmPlanner(const Tasks& tasks, const SlurmOptions& options)
      : tasks_(tasks),
        options_(options),
        places_(tasks.size()),
        highest_(max_of(tasks, &Task::priority, -1'000'000)) {}

  // Notes that hold of several tasks are told once.
  SlurmPlan plan() {
    find_after();
    find_levels();
    for (const Positions& members : levels_)
      plan_level(members);
    StringSet notes;
    for (const Task& task : tasks_) {
      for (std::string& note : slurm_notes(task))
        notes.insert(std::move(note));
    }
    plan_.notes.assign(notes.begin(), notes.end());
    return std::move(plan_);
  }

 private:
  using Positions = Indices;
  using After = std::vector<std::pair<size_t, int>>;  // arrays and their elements, or kWholeArray

  void find_after() {
    std::unordered_map<std::string_view, size_t> by_name;
    for (const size_t i : indices_of(tasks_))
      by_name.emplace(tasks_[i].name, i);
    for (const Task& task : tasks_)
      after_.push_back(mapped(task.after, [&](const auto& name) { return by_name.at(name); }));
  }

  // A task's level is one more than the highest of those that it comes after.
  void find_levels() {
    Positions waits_for;  // how many that have no level yet
    std::vector<Positions> before(tasks_.size());
    Positions ready;
    for (const size_t i : indices_of(tasks_)) {
      for (const size_t other : after_[i])
        before[other].push_back(i);
      waits_for.push_back(after_[i].size());
      if (after_[i].empty())
        ready.push_back(i);
    }
    while (!ready.empty()) {
      std::ranges::sort(ready);
      Positions next;
      for (const size_t task : ready) {
        for (const size_t later : before[task]) {
          if (--waits_for[later] == 0)
            next.push_back(later);
        }
      }
      levels_.push_back(std::move(ready));
      ready = std::move(next);
    }
  }

  // A text that is equal for tasks that can be in one array.
  std::string request_key(size_t task) const {
    return cat(join(slurm_request(tasks_[task], highest_), " "),
               "\n",
               slurm_script(tasks_[task], "", options_));
  }

  // Groups keep the order of their first tasks.
  void plan_level(const Positions& members) {
    std::map<std::pair<std::string, After>, size_t> by_key;
    std::vector<std::pair<After, Positions>> groups;  // in the order of the tasks
    // Tasks that are after one element of an array, by that array.
    std::map<std::pair<std::string, size_t>, Positions> single;
    for (const size_t task : members) {
      const After after = after_of(task);
      if (after.size() == 1 && after[0].second != kWholeArray) {
        single[{request_key(task), after[0].first}].push_back(task);
        continue;
      }
      const auto [group, is_new] = by_key.try_emplace({request_key(task), after}, groups.size());
      if (is_new)
        groups.push_back({after, {}});
      groups[group->second].second.push_back(task);
    }
    for (const auto& [after, tasks] : groups)
      add_in_pieces(tasks, after);
    for (const auto& [key, tasks] : single)
      add_single(tasks, key.second);
  }

  // Each of them is after one element of that array.
  void add_single(const Positions& tasks, size_t array) {
    std::map<int, Positions> by_index;
    for (const size_t task : tasks)
      by_index[places_[after_[task][0]].index].push_back(task);
    if (by_index.size() == tasks.size()) {
      Ints indices;
      Positions in_order;
      for (const auto& [index, one] : by_index) {
        indices.push_back(index);
        in_order.push_back(one[0]);
      }
      add(in_order, indices, {{array, kWholeArray}}, true);
      return;
    }
    for (const auto& [index, several] : by_index)
      add_in_pieces(several, {{array, index}});
  }

  // The elements that a task is after; of an array all of which it is after, the array.
  After after_of(size_t task) const {
    std::map<size_t, IntSet> elements;
    for (const size_t other : after_[task])
      elements[places_[other].array].insert(places_[other].index);
    After after;
    for (const auto& [array, indices] : elements) {
      if (indices.size() == plan_.arrays[array].tasks.size()) {
        after.emplace_back(array, kWholeArray);
      } else {
        for (const int index : indices)
          after.emplace_back(array, index);
      }
    }
    if (after.size() > kMaxDependencies) {
      throw invalid_argument("--submit slurm: expected a task that is after at most ",
                             kMaxDependencies,
                             " others, or after whole arrays, got ",
                             after.size(),
                             " (task ",
                             printable(tasks_[task].name),
                             "); put a task between them");
    }
    return after;
  }

  // Slurm limits how many elements an array has.
  void add_in_pieces(const Positions& tasks, const After& after) {
    const int most = std::max(1, options_.max_array);
    Positions piece;
    for (const size_t task : tasks) {
      piece.push_back(task);
      if (std::ssize(piece) == most)
        add_piece(std::exchange(piece, {}), after);
    }
    if (!piece.empty())
      add_piece(piece, after);
  }

  void add_piece(const Positions& tasks, const After& after) {
    add(tasks, numbers_below(int_size(tasks)), after, false);
  }

  // The array of the tasks with these indices. The file of elements has a line for each index,
  // empty where there is none.
  void add(const Positions& tasks, const Ints& indices, const After& after, bool corresponding) {
    const size_t number = plan_.arrays.size();
    SlurmArray array{
        .tasks = tasks, .indices = indices, .after = after, .corresponding = corresponding};
    const auto base = cat(options_.run_dir, "/slurm/", number);
    array.script_path = base + ".sh";
    array.elements_path = base + ".elements";
    array.script = slurm_script(tasks_[tasks[0]], array.elements_path, options_);
    int line = 0;
    for (const size_t i : indices_of(tasks)) {
      for (; line < indices[i]; ++line)
        array.elements += "\n";
      array.elements +=
          element_line(tasks_[tasks[i]], options_.run_dir, options_.visibility) + "\n";
      ++line;
      places_[tasks[i]] = {number, indices[i]};
    }
    array.arguments = {"--parsable",
                       "--job-name=muster",
                       cat("--array=", to_cpu_list(indices)),
                       cat("--output=", log_pattern()),
                       "--open-mode=append"};  // of a start that was requeued
    const Strings request = slurm_request(tasks_[tasks[0]], highest_);
    append_all(array.arguments, request);
    plan_.arrays.push_back(std::move(array));
  }

  // %A and %a are the job's and the element's numbers; a % of the folder's name is doubled.
  std::string log_pattern() const {
    return join(split(options_.run_dir, '%'), "%%") + "/logs/slurm-%A_%a.log";
  }

  const Tasks& tasks_;
  const SlurmOptions& options_;
  std::vector<ElementPlace> places_;
  std::vector<Positions> after_;
  std::vector<Positions> levels_;
  int highest_;
  SlurmPlan plan_;
};

}  // namespace

SlurmPlan plan_slurm(const Tasks& tasks, const SlurmOptions& options) {
  return SlurmPlanner(tasks, options).plan();
}

// A job after several others waits for all of them.
std::string dependency_argument(const SlurmArray& array, const Strings& job_ids) {
  if (array.after.empty())
    return "";
  auto text = cat("--dependency=", array.corresponding ? "aftercorr" : "afterok");
  for (const auto& [other, index] : array.after)
    text += cat(":", job_ids.at(other), index == kWholeArray ? "" : cat("_", index));
  return text;
}

}  // namespace muster
