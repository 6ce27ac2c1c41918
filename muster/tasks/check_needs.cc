#include "muster/tasks/check_needs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/tasks/reachable_gpus.h"

namespace muster {
namespace {

constexpr size_t kMaxImpossible = 10;
constexpr size_t kMaxModelsShown = 5;

std::string count_of(size_t count, const char* word) {
  return cat(count, " ", word, count == 1 ? "" : "s");
}

// One alternative against all hosts.
class NeedJudge {
 public:
  NeedJudge(const ReachableGpus& reachable, const TaskNeed& need)
      : reachable_(reachable), need_(need), num_gpus_(static_cast<size_t>(std::ceil(need.gpus))) {}

  bool possible() const {
    return std::any_of(reachable_.hosts.begin(), reachable_.hosts.end(), [&](const ReachableHost& host) {
      return has_cores(host) && num_fitting(host, true, true) >= num_gpus_;
    });
  }

  // What is asked for, and the nearest there is.
  std::string nearest() const {
    if (num_gpus_ > 0 && best(false, false).count < num_gpus_) return too_few("", best(false, false));
    if (num_gpus_ > 0 && best(true, false).count < num_gpus_) return no_model();
    if (num_gpus_ > 0 && best(true, true).count < num_gpus_) return no_memory();
    int cores = 0;
    std::string where;
    for (const ReachableHost& host : reachable_.hosts) {
      if (has_cores(host)) return cat(asked(""), " and ", cores_text(), ": no host has both");
      if (host.num_cores > cores) where = host.name;
      cores = std::max(cores, host.num_cores);
    }
    return cat(cores_text(), ": the most that a host has is ", cores, " (host ", where, ")");
  }

 private:
  struct Best {
    size_t count = 0;
    std::string host = {};
  };

  std::string cores_text() const { return count_of(static_cast<size_t>(need_.cpus), "core"); }

  bool has_cores(const ReachableHost& host) const {
    return host.num_cores == 0 || host.num_cores >= need_.cpus;
  }

  bool is_model(const ReachableGpu& gpu) const {
    return lower_case(gpu.model).find(lower_case(need_.model)) != std::string::npos;
  }

  size_t num_fitting(const ReachableHost& host, bool model, bool memory) const {
    const auto fitting = std::count_if(host.gpus.begin(), host.gpus.end(), [&](const ReachableGpu& gpu) {
      return (!model || is_model(gpu)) && (!memory || gpu.memory_bytes >= need_.memory_bytes);
    });
    return std::min(host.most, static_cast<size_t>(fitting));
  }

  Best best(bool model, bool memory) const {
    Best best;
    for (const ReachableHost& host : reachable_.hosts) {
      const size_t count = num_fitting(host, model, memory);
      if (count > best.count) best = {count, host.name};
    }
    return best;
  }

  std::string asked(const std::string& which) const { return cat(count_of(num_gpus_, "GPU"), which); }

  std::string too_few(const std::string& which, const Best& best) const {
    if (best.count > 0) {
      return cat(asked(which), ": the most that a host has is ", best.count, " (host ", best.host, ")",
                 reachable_.on.empty() ? "" : cat(" of on = '", reachable_.on, "'"));
    }
    return cat(asked(which),
               reachable_.why_none.empty() ? ": no host has one" : cat(": ", reachable_.why_none));
  }

  std::string no_model() const {
    const std::string which = cat(" of model '", need_.model, "'");
    const Best most = best(true, false);
    if (most.count > 0) return too_few(which, most);
    std::set<std::string> models;
    for (const ReachableHost& host : reachable_.hosts) {
      for (const ReachableGpu& gpu : host.gpus) models.insert(gpu.model);
    }
    const size_t left_out = models.size() > kMaxModelsShown ? models.size() - kMaxModelsShown : 0;
    while (models.size() > kMaxModelsShown) models.erase(std::prev(models.end()));
    return cat(asked(which), ": there are only '", join(models, "', '"), "'",
               left_out > 0 ? cat(" and ", left_out, " others") : "");
  }

  // The most memory that so many GPUs of one host have each.
  std::string no_memory() const {
    uint64_t most = 0;
    std::string where;
    for (const ReachableHost& host : reachable_.hosts) {
      std::vector<uint64_t> sizes;
      for (const ReachableGpu& gpu : host.gpus) {
        if (is_model(gpu)) sizes.push_back(gpu.memory_bytes);
      }
      if (std::min(host.most, sizes.size()) < num_gpus_) continue;
      std::sort(sizes.rbegin(), sizes.rend());
      if (sizes[num_gpus_ - 1] > most) where = host.name;
      most = std::max(most, sizes[num_gpus_ - 1]);
    }
    return cat(asked(cat(" with ", format_bytes(need_.memory_bytes))), ": the most that ",
               num_gpus_ == 1 ? "a GPU has is " : cat(num_gpus_, " GPUs of a host have each is "),
               format_bytes(most), " (host ", where, ")");
  }

  const ReachableGpus& reachable_;
  const TaskNeed& need_;
  const size_t num_gpus_;
};

// All tasks that ask for the same.
struct NeedGroup {
  const Task* first = nullptr;
  size_t num_tasks = 0;
};

// As a key of a map.
std::string group_key(const Task& task) {
  std::string key = task.on;
  for (const TaskNeed& need : task.needs) {
    key += cat('\0', std::llround(need.gpus * 1000), ",", need.memory_bytes, ",", need.cpus, ",", need.model);
  }
  return key;
}

std::string place_of(const Task& task, const std::string& source) {
  if (task.at.line == 0 || source.empty()) return "";
  return cat(printable(source), ":", task.at.line, ":", task.at.column, ": ");
}

// "this machine has 2 GPUs and 8 cores"; of several hosts the most that one has, of what is not known
// nothing.
std::string what_there_is(const Inventory& inventory) {
  size_t gpus = 0;
  int cores = 0;
  for (const Host& host : inventory.hosts) {
    gpus = std::max(gpus, host.gpus.size());
    cores = std::max(cores, host.num_cores);
  }
  std::vector<std::string> parts;
  if (gpus > 0) parts.push_back(count_of(gpus, "GPU"));
  if (cores > 0) parts.push_back(count_of(static_cast<size_t>(cores), "core"));
  if (parts.empty()) return inventory.source;
  return cat(inventory.source, inventory.hosts.size() == 1 ? " has " : " has hosts of at most ",
             join(parts, " and "));
}

std::string impossible(const NeedGroup& group, const ReachableGpus& reachable, const NeedsCheck& check) {
  const Task& task = *group.first;
  std::string text = cat(place_of(task, check.source), "task ", printable(task.name));
  if (group.num_tasks > 1) text += cat(" and ", group.num_tasks - 1, " more");
  text += cat(": expected needs that a host can meet (", what_there_is(check.inventory), "), got");
  for (const TaskNeed& need : task.needs) {
    text += cat(task.needs.size() == 1 ? " " : "\n  ", NeedJudge(reachable, need).nearest());
  }
  return text;
}

}  // namespace

void check_needs(const std::vector<Task>& tasks, const NeedsCheck& check) {
  std::map<std::string, size_t> positions;
  std::vector<NeedGroup> groups;  // in the order of the tasks
  for (const Task& task : tasks) {
    const auto [position, is_new] = positions.try_emplace(group_key(task), groups.size());
    if (is_new) groups.push_back({.first = &task});
    ++groups[position->second].num_tasks;
  }
  std::map<std::string, ReachableGpus> by_selection;
  std::vector<std::string> problems;
  for (const NeedGroup& group : groups) {
    const auto [place, is_new] = by_selection.try_emplace(group.first->on);
    ReachableGpus& reachable = place->second;
    if (is_new) reachable = reachable_gpus(group.first->on, check.inventory, check.masks, check.scores);
    const std::vector<TaskNeed>& needs = group.first->needs;
    const auto possible = [&](const TaskNeed& need) { return NeedJudge(reachable, need).possible(); };
    if (std::any_of(needs.begin(), needs.end(), possible)) continue;
    problems.push_back(impossible(group, reachable, check));
    if (problems.size() == kMaxImpossible) break;
  }
  if (!problems.empty()) throw Error(ErrorCode::invalid_argument, join(problems, "\n"));
}

}  // namespace muster
