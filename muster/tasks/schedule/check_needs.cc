// Tasks that ask for the same are judged once, as a group. Each alternative of a group is held
// against every host that its `on` reaches; where all fail, the nearest that there is tells by how
// much, and a second look without --gpus, --cpus or `on` tells which of these is to blame.
#include "muster/tasks/schedule/check_needs.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <ranges>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/tasks/schedule/device_pool.h"
#include "muster/tasks/schedule/reachable_gpus.h"
#include "muster/tasks/spec/problems.h"

namespace muster {
namespace {

// So many problems, and so many models, are told at most.
constexpr size_t kMaxImpossible = 10;
constexpr size_t kMaxModelsShown = 5;

// `before` and the run's `--gpus` or `--cpus`; empty where the run has none.
std::string gpus_flag(const NeedsCheck& check, const char* before) {
  return check.gpus ? cat(before, "--gpus ", check.gpus->text) : "";
}
std::string cpus_flag(const NeedsCheck& check, const char* before) {
  return check.cpus > 0 ? cat(before, "--cpus ", check.cpus) : "";
}

// Judges one alternative against all hosts.
class NeedJudge {
 public:
  NeedJudge(const NeedsCheck& check, const ReachableGpus& reachable, const TaskNeed& need)
      : check_(check), reachable_(reachable), need_(need), num_gpus_(gpus_of(need)) {}

  bool possible() const {
    return any_of(reachable_.hosts, [&](const ReachableHost& host) {
      return has_cpus(host) && num_fitting(host, true, true) >= num_gpus_;
    });
  }

  // Says what is asked for, and the nearest there is. The demands are added one by one: the first
  // that no host meets is the one that is told.
  std::string nearest() const {
    if (const Best most = best(false, false); most.count < num_gpus_)
      return too_few("", most);
    if (best(true, false).count < num_gpus_)
      return no_model();
    if (best(true, true).count < num_gpus_)
      return no_memory();
    return no_cpus();
  }

 private:
  // The host that has most of something.
  struct Best {
    size_t count = 0;
    std::string host{};
  };

  std::string cpus_text() const { return plural(need_.cpus, "CPU"); }

  bool has_cpus(const ReachableHost& host) const {
    return host.num_cores == 0 || host.num_cores >= need_.cpus;
  }

  // No host has enough CPUs, or none beside enough GPUs.
  std::string no_cpus() const {
    int cores = 0;
    std::string where;
    for (const ReachableHost& host : reachable_.hosts) {
      if (has_cpus(host))
        return cat(asked(""), " and ", cpus_text(), ": no host has both");
      if (host.num_cores > cores)
        where = host.name;
      cores = std::max(cores, host.num_cores);
    }
    return cat(cpus_text(),
               ": the most that a host has is ",
               cores,
               " (host ",
               where,
               ")",
               cpus_flag(check_, " of "));
  }

  // How many of the host's GPUs fit at one time, by their model, their memory, or both.
  size_t num_fitting(const ReachableHost& host, bool model, bool memory) const {
    const auto fits = [&](const ReachableGpu& gpu) {
      const bool has_model = !model || is_model(gpu.model, need_);
      return has_model && (!memory || gpu.memory_bytes >= need_.memory_bytes);
    };
    return std::min<size_t>(host.most, std::ranges::count_if(host.gpus, fits));
  }

  Best best(bool model, bool memory) const {
    Best best;
    for (const ReachableHost& host : reachable_.hosts) {
      const size_t count = num_fitting(host, model, memory);
      if (count > best.count)
        best = {count, host.name};
    }
    return best;
  }

  // Each answer begins with what the need asks for.
  std::string asked(const std::string& which) const { return cat(plural(num_gpus_, "GPU"), which); }

  // `which` narrows down the GPUs that are counted: " of model 'A100'".
  std::string too_few(const std::string& which, const Best& best) const {
    if (best.count > 0) {
      return cat(asked(which),
                 ": the most that a host has is ",
                 best.count,
                 " (host ",
                 best.host,
                 ")",
                 framed(" of on = '", reachable_.on, "'"),
                 gpus_flag(check_, " of "));
    }
    return cat(asked(which),
               reachable_.why_none.empty() ? ": no host has one" : cat(": ", reachable_.why_none));
  }

  // Too few GPUs are of the model: the most that are, or which models there are.
  std::string no_model() const {
    const auto which = cat(" of model '", need_.model, "'");
    const Best most = best(true, false);
    if (most.count > 0)
      return too_few(which, most);
    StringSet models;
    for (const ReachableHost& host : reachable_.hosts) {
      for (const ReachableGpu& gpu : host.gpus)
        models.insert(gpu.model);
    }
    size_t left_out = 0;
    for (; models.size() > kMaxModelsShown; ++left_out)
      models.erase(std::prev(models.end()));
    return cat(asked(which),
               ": there are only '",
               join(models, "', '"),
               "'",
               left_out > 0 ? cat(" and ", left_out, " others") : "");
  }

  // Too few GPUs have the memory: the most that so many GPUs of one host have each.
  std::string no_memory() const {
    uint64_t most = 0;
    std::string where;
    for (const ReachableHost& host : reachable_.hosts) {
      std::vector<uint64_t> sizes =
          mapped(host.gpus | std::views::filter([&](const ReachableGpu& gpu) {
                   return is_model(gpu.model, need_);
                 }),
                 &ReachableGpu::memory_bytes);
      if (std::min(host.most, sizes.size()) < num_gpus_)
        continue;
      std::sort(sizes.rbegin(), sizes.rend());
      if (where.empty() || sizes[num_gpus_ - 1] > most)
        where = host.name;
      most = std::max(most, sizes[num_gpus_ - 1]);
    }
    const Strings texts = format_compared_bytes({need_.memory_bytes, most});
    const std::string which = asked(cat(" with ", texts[0]));
    if (most == 0)
      return cat(which, ": how much memory GPUs have is not known (host ", where, ")");
    return cat(which,
               ": the most that ",
               num_gpus_ == 1 ? "a GPU has is " : cat(num_gpus_, " GPUs of a host have each is "),
               texts[1],
               " (host ",
               where,
               ")");
  }

  const NeedsCheck& check_;
  const ReachableGpus& reachable_;
  const TaskNeed& need_;
  const size_t num_gpus_;
};

// All tasks that ask for the same.
struct NeedGroup {
  const Task* first = nullptr;
  size_t num_tasks = 0;
};

// "this machine has 2 GPUs and 8 CPUs". Of several hosts it is the most that one has; what is not
// known is left out.
std::string what_there_is(const NeedsCheck& check) {
  const Inventory& inventory = check.inventory;
  const auto gpus =
      max_of<size_t>(inventory.hosts, [](const Host& host) { return host.gpus.size(); });
  const int cores = max_of<int>(inventory.hosts, &Host::num_cores);
  Strings parts;
  if (gpus > 0)
    parts.push_back(plural(gpus, "GPU"));
  if (cores > 0)
    parts.push_back(plural(cores, "CPU"));
  if (parts.empty())
    return inventory.source;
  return a_host_has(inventory, join(parts, " and "));
}

// Finds each group's problem, and says it with its place in the spec.
class NeedsChecker {
 public:
  explicit NeedsChecker(const NeedsCheck& check)
      : check_(check),
        limited_{check.inventory, check.masks, check.scores, check.gpus, check.cpus},
        whole_{check.inventory, check.masks, check.scores},
        spec_(check_.text, check_.source) {
    const ReachableGpus all = reachable_gpus("", limited_);
    has_gpus_ = any_of(all.hosts, [](const ReachableHost& host) { return !host.gpus.empty(); });
  }

  // Says what is wrong with the tasks, and where; empty: nothing.
  std::string problem_of(const NeedGroup& group) {
    const Task& task = *group.first;
    const auto [place, is_new] = by_selection_.try_emplace(task.on);
    const ReachableGpus& reachable = place->second;
    if (is_new)
      place->second = reachable_gpus(task.on, limited_);
    if (!reachable.on_problem.empty())
      return bad_on(group, reachable);
    return any_possible(task, reachable) ? "" : impossible(group, reachable);
  }

 private:
  bool any_possible(const Task& task, const ReachableGpus& reachable) const {
    return any_of(needs_here(task.needs, has_gpus_), [&](const TaskNeed& need) {
      return NeedJudge(check_, reachable, need).possible();
    });
  }

  // "t.toml:2:8: PROBLEM" and the line, as far as they are known.
  std::string told(const NeedGroup& group, SpecPosition at, const std::string& problem) const {
    auto text = cat("task ", printable(group.first->name));
    if (group.num_tasks > 1)
      text += cat(" and ", group.num_tasks - 1, " more");
    text += cat(": ", problem);
    if (at.line == 0 || check_.source.empty())
      return cat(check_.need_flags.empty() ? "" : cat(check_.need_flags, ": "), text);
    return cat(printable(check_.source), ":", at.line, ":", at.column, ": ", text, spec_.shown(at));
  }

  // The task's `on` names what is nowhere.
  std::string bad_on(const NeedGroup& group, const ReachableGpus& reachable) const {
    const Task& task = *group.first;
    const SpecPosition at = task.places.on;
    return told(group,
                at.line == 0 ? task.at : spec_.inside(at, task.on, reachable.on_problem_at),
                cat("on = '",
                    printable(task.on),
                    "': ",
                    printable(reachable.on_problem),
                    " (",
                    what_there_is(check_),
                    gpus_flag(check_, "; "),
                    "); see `muster devices`, and correct on"));
  }

  // No alternative can be met: what each lacks, and what to change.
  std::string impossible(const NeedGroup& group, const ReachableGpus& reachable) const {
    const Task& task = *group.first;
    const bool by_flags =
        (check_.gpus || check_.cpus > 0) && any_possible(task, reachable_gpus(task.on, whole_));
    const bool by_on =
        !by_flags && !task.on.empty() && any_possible(task, reachable_gpus("", limited_));
    const TaskNeeds needs = needs_here(task.needs, has_gpus_);
    auto text = cat("expected needs that a host can meet (", what_there_is(check_), "), got");
    const char* const before_each = word_for(needs.size(), " ", "\n  ");
    for (const TaskNeed& need : needs)
      text += before_each + NeedJudge(check_, reachable, need).nearest();
    return told(group, place_of(task, by_on), cat(text, next_step(task, by_flags, by_on)));
  }

  std::string next_step(const Task& task, bool by_flags, bool by_on) const {
    if (by_flags) {
      return cat(
          "; ask for less, or give more than", gpus_flag(check_, " "), cpus_flag(check_, " "));
    }
    if (by_on)
      return "; see `muster devices`, and correct on or leave it out for any";
    return task.at.line == 0 ? "; ask for less with --need-gpus, --need-memory or --need-cpus"
                             : "; ask for less, or add an alternative to needs";
  }

  // The place of the key that is to blame.
  static SpecPosition place_of(const Task& task, bool by_on) {
    const NeedPlaces& places = task.places;
    for (const SpecPosition at :
         {by_on ? places.on : SpecPosition(), places.needs, places.ranks, places.on}) {
      if (at.line != 0)
        return at;
    }
    return task.at;
  }

  const NeedsCheck& check_;
  const ReachOptions limited_;
  const ReachOptions whole_;
  const SpecProblems spec_;
  bool has_gpus_ = false;  // the run, and not only its machines
  std::map<std::string, ReachableGpus> by_selection_;
};

}  // namespace

// A group's problem names its first task and how many more there are. A host that can give any
// share of a GPU can give each, so a share counts as the GPU that it is of: those of a sweep are
// one group.
void check_needs(const Tasks& tasks, const NeedsCheck& check) {
  std::map<std::pair<std::string, TaskNeeds>, size_t> positions;
  std::vector<NeedGroup> groups;  // in the order of the tasks
  for (const Task& task : tasks) {
    std::vector<TaskNeed> judged = task.needs;
    for (TaskNeed& need : judged)
      need.gpus = gpus_of(need);
    const auto [position, is_new] = positions.try_emplace({task.on, judged}, groups.size());
    if (is_new)
      groups.push_back({.first = &task});
    ++groups[position->second].num_tasks;
  }
  NeedsChecker checker(check);
  Strings problems;
  for (const NeedGroup& group : groups) {
    std::string problem = checker.problem_of(group);
    if (problem.empty())
      continue;
    problems.push_back(std::move(problem));
    if (problems.size() == kMaxImpossible)
      break;
  }
  if (!problems.empty())
    throw invalid_argument(join(problems, "\n"));
}

}  // namespace muster
