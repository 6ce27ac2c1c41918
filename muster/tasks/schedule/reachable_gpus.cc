// A selection is split into what lasts and what changes. What lasts is applied to the hosts as they
// are; what changes (idle GPUs, free memory) could come to mean any GPU that the rest leaves, of
// which at most as many as the picks name at one time.
#include "muster/tasks/schedule/reachable_gpus.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"
#include "muster/tasks/schedule/device_pool.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;

// Whether what the item means depends on the moment.
bool changes(const SelectionItem& item) {
  return is_one_of(item.kind, Kind::idle, Kind::free, Kind::free_memory);
}

// Whether what the part's picks mean depends on the moment.
bool picks_change(const SelectionPart& part) {
  return std::ranges::any_of(
      part.items, [](const SelectionItem& item) { return changes(item) && is_pick(item); });
}

// How many of the `reachable` GPUs the pick could come to. An index or a UUID of a GPU that is
// split by MIG stands for all of its instances.
size_t most_of(const SelectionItem& pick, const std::vector<UsableGpu>& reachable) {
  if (is_one_of(pick.kind, Kind::free, Kind::fastest))
    return pick.count;
  const bool some_are_split = std::ranges::any_of(reachable, &UsableGpu::is_instance);
  if (is_one_of(pick.kind, Kind::all, Kind::idle) || some_are_split)
    return reachable.size();
  return pick.kind == Kind::uuid ? 1 : pick.last - pick.first + 1;
}

// How many of the `reachable` GPUs the part could come to at one time.
size_t most_of(const SelectionPart& part, const std::vector<UsableGpu>& reachable) {
  if (!picks_change(part))
    return reachable.size();
  size_t most = 0;
  for (const SelectionItem& pick : filtered(part.items, is_pick))
    most += most_of(pick, reachable);
  return std::min(most, reachable.size());
}

// The selection without what changes. Where some picks change, any GPU that the rest leaves could
// be theirs.
Selection without_changes(Selection selection) {
  for (SelectionPart& part : selection.parts) {
    const bool drops_picks = picks_change(part);
    std::erase_if(part.items, [&](const SelectionItem& item) {
      return changes(item) || (drops_picks && is_pick(item));
    });
    if (part.items.empty())
      part.items.emplace_back();  // all
  }
  return selection;
}

// How many cores tasks may use of the host; 0 if a file has told none.
int cores_of(const Host& host, const ReachOptions& options) {
  if (options.cpus > 0)
    return options.cpus;
  const bool is_told = !options.inventory.simulated || !host.cores.empty();
  return is_told ? host.num_cores : 0;
}

// A selection whose hosts the inventory has, and what lasts of it.
struct CheckedSelection {
  Selection given = {};
  Selection lasting = {};

  CheckedSelection(const Selection& selection, const Inventory& inventory)
      : given(selection), lasting(without_changes(selection)) {
    check_selection(given, inventory);
  }
};

// Goes through the hosts one by one and gathers what `on` gives on each.
class Reach {
 public:
  Reach(const std::string& on, const ReachOptions& options) : options_(options) {
    if (options.gpus)
      run_.emplace(*options.gpus, options.inventory);
    reachable_.on = on;
    try {
      on_.emplace(Selection(on), options.inventory);
    } catch (const SelectionError& error) {
      set_problem(error);
    }
  }

  // Problems and reasons are dropped where any host makes them void.
  ReachableGpus find() {
    for (const Host& host : options_.inventory.hosts)
      add(host);
    const auto has_gpus = [](const ReachableHost& host) {
      return !host.gpus.empty();
    };
    if (std::ranges::any_of(reachable_.hosts, has_gpus))
      reachable_.why_none.clear();
    if (fits_a_host_ && !named_host_fails_)
      reachable_.on_problem.clear();
    return std::move(reachable_);
  }

 private:
  // The GPUs that the run could have of a host, and how many of these at one time.
  struct RunGpus {
    UsableGpus usable = {};
    size_t most = 0;
  };

  RunGpus gpus_of_run(const Host& host) const {
    const UsableGpus all = usable_gpus(host, options_.masks);
    if (!run_)
      return {all, all.gpus.size()};
    const SelectionPart* const part = part_for(run_->given, host);
    if (part == nullptr)
      return {};
    UsableGpus chosen;
    chosen.gpus = select_gpus(run_->lasting, host, all, options_.scores);
    return {chosen, most_of(*part, chosen.gpus)};
  }

  // Hosts that are alike come once: what holds of one holds of all.
  void add(const Host& host) {
    const RunGpus run = gpus_of_run(host);
    ReachableHost found{.name = host.name, .num_cores = cores_of(host, options_)};
    if (const SelectionPart* const part = on_ ? part_for(on_->given, host) : nullptr)
      add_gpus(host, *part, run, found);
    if (found.gpus.empty() && reachable_.why_none.empty())
      reachable_.why_none = why_none(host, run.usable);
    if (seen_.emplace(found.num_cores, found.most, found.gpus).second)
      reachable_.hosts.push_back(std::move(found));
  }

  // Adds the GPUs that `on` selects among those of the run.
  void add_gpus(const Host& host,
                const SelectionPart& part,
                const RunGpus& run,
                ReachableHost& found) {
    try {
      const auto reachable = select_gpus(on_->lasting, host, run.usable, options_.scores);
      for (const UsableGpu& gpu : reachable)
        found.gpus.push_back({total_memory_bytes(host, gpu), model_of(host, gpu)});
      found.most = std::min(run.most, most_of(part, reachable));
      fits_a_host_ = true;
    } catch (const SelectionError& error) {
      if (!part.host.empty())
        named_host_fails_ = true;
      set_problem(error);
    }
  }

  std::string why_none(const Host& host, const UsableGpus& usable) const {
    if (run_ && usable.gpus.empty())
      return cat("--gpus ", run_->given.text, " leaves none");
    return describe(host, usable);
  }

  // Only the first problem is told.
  void set_problem(const SelectionError& error) {
    if (!reachable_.on_problem.empty())
      return;
    reachable_.on_problem = error.problem();
    reachable_.on_problem_at = error.at();
  }

  const ReachOptions& options_;
  std::optional<CheckedSelection> run_ = {};
  std::optional<CheckedSelection> on_ = {};
  ReachableGpus reachable_ = {};
  bool fits_a_host_ = false;
  bool named_host_fails_ = false;  // one that `on` speaks of by its name
  std::set<std::tuple<int, size_t, std::vector<ReachableGpu>>> seen_ = {};
};

}  // namespace

std::string a_host_has(const Inventory& inventory, const std::string& most) {
  if (inventory.hosts.size() == 1)
    return cat(inventory.source, " has ", most);
  return cat("a host of ", inventory.source, " has at most ", most);
}

ReachableGpus reachable_gpus(const std::string& on, const ReachOptions& options) {
  return Reach(on, options).find();
}

}  // namespace muster
