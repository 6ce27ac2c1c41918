#include "muster/tasks/schedule/reachable_gpus.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;

bool changes(const SelectionItem& item) {
  return item.kind == Kind::idle || item.kind == Kind::free || item.kind == Kind::free_memory;
}

bool is_pick_of_gpus(const SelectionItem& item) {
  return !item.excludes && item.kind != Kind::memory && item.kind != Kind::free_memory &&
         item.kind != Kind::model;
}

// How many GPUs the picks could come to.
size_t most_of(const SelectionPart& part) {
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  size_t most = 0;
  bool any = false;
  for (const SelectionItem& item : part.items) {
    if (!is_pick_of_gpus(item))
      continue;
    any = true;
    if (item.kind == Kind::all || item.kind == Kind::idle)
      return kAll;
    if (item.kind == Kind::indices) {
      most += static_cast<size_t>(item.last - item.first + 1);
    } else {
      most += item.kind == Kind::uuid ? 1 : static_cast<size_t>(item.first);
    }
  }
  return any ? most : kAll;
}

// The selection without what changes. Where some picks change, any GPU that the rest leaves could
// be theirs.
Selection lasting(const Selection& selection) {
  Selection lasting = selection;
  for (SelectionPart& part : lasting.parts) {
    const bool picks_change =
        std::any_of(part.items.begin(), part.items.end(), [](const SelectionItem& item) {
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

// 0: not known.
int cores_of(const Host& host, const ReachOptions& options) {
  if (options.cpus > 0)
    return options.cpus;
  return options.inventory.simulated && host.cores.empty() ? 0 : host.num_cores;
}

// A selection as all hosts take it.
struct HostSelection {
  Selection text = {};
  Selection lasting = {};

  HostSelection(Selection given, const Inventory& inventory)
      : text(std::move(given)), lasting(muster::lasting(text)) {
    std::vector<const Host*> hosts;
    for (const Host& host : inventory.hosts)
      hosts.push_back(&host);
    check_selection_hosts(text, hosts);
  }
};

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

  ReachableGpus find() {
    for (const Host& host : options_.inventory.hosts)
      add(host);
    const bool none = std::all_of(reachable_.hosts.begin(),
                                  reachable_.hosts.end(),
                                  [](const ReachableHost& host) { return host.gpus.empty(); });
    if (!none)
      reachable_.why_none.clear();
    if (fits_a_host_ && !named_host_fails_)
      reachable_.on_problem.clear();
    return std::move(reachable_);
  }

 private:
  // What the run has of the host, and how many at one time.
  std::pair<UsableGpus, size_t> of_run(const Host& host) const {
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

  void add(const Host& host) {
    const auto [usable, most] = of_run(host);
    ReachableHost found{.name = host.name, .num_cores = cores_of(host, options_)};
    if (const SelectionPart* const part = on_ ? part_for(on_->text, host) : nullptr) {
      try {
        for (const UsableGpu& device : select_gpus(on_->lasting, host, usable, options_.scores)) {
          found.gpus.push_back({total_memory_bytes(host, device), model_of(host, device)});
        }
        found.most = std::min({most_of(*part), most, found.gpus.size()});
        fits_a_host_ = true;
      } catch (const SelectionError& error) {
        named_host_fails_ = named_host_fails_ || !part->host.empty();
        set_problem(error);
      }
    }
    if (found.gpus.empty() && reachable_.why_none.empty()) {
      reachable_.why_none = !run_ || !usable.gpus.empty()
                                ? describe(host, usable)
                                : cat("--gpus ", run_->text.text, " leaves none");
    }
    const auto facts = std::tuple(found.num_cores, found.most, found.gpus);
    if (seen_.insert(facts).second)
      reachable_.hosts.push_back(std::move(found));
  }

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

ReachableGpus reachable_gpus(const std::string& on, const ReachOptions& options) {
  return Reach(on, options).find();
}

}  // namespace muster
