// A selection is split into what lasts and what changes. What lasts is applied to the hosts as they
// are; what changes (idle GPUs, free memory) could come to mean any GPU that the rest leaves, of
// which at most as many as the picks name at one time.
#include "muster/tasks/schedule/reachable_gpus.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
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

// Whether the item names GPUs, and does not only narrow down what others name.
bool is_pick_of_gpus(const SelectionItem& item) {
  if (item.excludes)
    return false;
  return !is_one_of(item.kind, Kind::memory, Kind::free_memory, Kind::model);
}

constexpr size_t kAllGpus = std::numeric_limits<size_t>::max();

// How many GPUs the pick could come to.
size_t most_of(const SelectionItem& pick) {
  switch (pick.kind) {
    case Kind::all:
    case Kind::idle:
      return kAllGpus;
    case Kind::indices:
      return pick.last - pick.first + 1;
    case Kind::uuid:
      return 1;
    default:
      return pick.first;
  }
}

// How many GPUs the part's picks could come to together; without any pick it means all.
size_t most_of(const SelectionPart& part) {
  size_t most = 0;
  bool any = false;
  for (const SelectionItem& item : part.items) {
    if (!is_pick_of_gpus(item))
      continue;
    any = true;
    const size_t of_item = most_of(item);
    if (of_item == kAllGpus)
      return kAllGpus;
    most += of_item;
  }
  return any ? most : kAllGpus;
}

// The selection without what changes. Where some picks change, any GPU that the rest leaves could
// be theirs.
Selection lasting(const Selection& selection) {
  Selection lasting = selection;
  for (SelectionPart& part : lasting.parts) {
    const bool picks_change = std::ranges::any_of(part.items, [](const SelectionItem& item) {
      return changes(item) && is_pick_of_gpus(item);
    });
    std::erase_if(part.items, [&](const SelectionItem& item) {
      return changes(item) || (picks_change && is_pick_of_gpus(item));
    });
    if (part.items.empty())
      part.items.emplace_back();  // all
  }
  return lasting;
}

// How many cores tasks may use of the host; 0: not known, as of a file that tells none.
int cores_of(const Host& host, const ReachOptions& options) {
  if (options.cpus > 0)
    return options.cpus;
  const bool is_told = !options.inventory.simulated || !host.cores.empty();
  return is_told ? host.num_cores : 0;
}

// A selection whose hosts the inventory has, and what lasts of it.
struct HostSelection {
  Selection text = {};
  Selection lasting = {};

  HostSelection(Selection given, const Inventory& inventory)
      : text(std::move(given)), lasting(muster::lasting(text)) {
    check_selection(text, inventory);
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
  // The GPUs that the run has of a host, and how many of these at one time.
  struct OfRun {
    UsableGpus usable = {};
    size_t most = 0;
  };

  OfRun of_run(const Host& host) const {
    const UsableGpus all = usable_gpus(host, options_.masks);
    if (!run_)
      return {all, all.gpus.size()};
    const SelectionPart* const part = part_for(run_->text, host);
    if (part == nullptr)
      return {};
    UsableGpus chosen;
    chosen.gpus = select_gpus(run_->lasting, host, all, options_.scores);
    return {chosen, std::min(most_of(*part), chosen.gpus.size())};
  }

  // Hosts that are alike come once: what holds of one holds of all.
  void add(const Host& host) {
    const OfRun run = of_run(host);
    ReachableHost found{.name = host.name, .num_cores = cores_of(host, options_)};
    if (const SelectionPart* const part = on_ ? part_for(on_->text, host) : nullptr)
      add_gpus(host, *part, run, found);
    if (found.gpus.empty() && reachable_.why_none.empty())
      reachable_.why_none = why_none(host, run.usable);
    if (seen_.emplace(found.num_cores, found.most, found.gpus).second)
      reachable_.hosts.push_back(std::move(found));
  }

  // The GPUs that `on` selects among those of the run.
  void add_gpus(const Host& host,
                const SelectionPart& part,
                const OfRun& run,
                ReachableHost& found) {
    try {
      for (const UsableGpu& gpu : select_gpus(on_->lasting, host, run.usable, options_.scores))
        found.gpus.push_back({total_memory_bytes(host, gpu), model_of(host, gpu)});
      found.most = std::min({most_of(part), run.most, found.gpus.size()});
      fits_a_host_ = true;
    } catch (const SelectionError& error) {
      if (!part.host.empty())
        named_host_fails_ = true;
      set_problem(error);
    }
  }

  std::string why_none(const Host& host, const UsableGpus& usable) const {
    if (run_ && usable.gpus.empty())
      return cat("--gpus ", run_->text.text, " leaves none");
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
  std::optional<HostSelection> run_ = {};
  std::optional<HostSelection> on_ = {};
  ReachableGpus reachable_ = {};
  bool fits_a_host_ = false;
  bool named_host_fails_ = false;  // one that `on` speaks of by its name
  std::set<std::tuple<int, size_t, std::vector<ReachableGpu>>> seen_ = {};
};

}  // namespace

std::string a_host_has(const Inventory& inventory) {
  if (inventory.hosts.size() == 1)
    return cat(inventory.source, " has ");
  return cat("a host of ", inventory.source, " has at most ");
}

ReachableGpus reachable_gpus(const std::string& on, const ReachOptions& options) {
  return Reach(on, options).find();
}

}  // namespace muster
