#include "muster/tasks/reachable_gpus.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "muster/base/strings.h"
#include "muster/placement/gpu_facts.h"
#include "muster/placement/selection.h"

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
    if (!is_pick_of_gpus(item)) continue;
    any = true;
    if (item.kind == Kind::all || item.kind == Kind::idle) return kAll;
    if (item.kind == Kind::indices) {
      most += static_cast<size_t>(item.last - item.first + 1);
    } else {
      most += item.kind == Kind::uuid ? 1 : static_cast<size_t>(item.first);
    }
  }
  return any ? most : kAll;
}

// The selection without what changes. Where some picks change, any GPU that the rest leaves could be theirs.
Selection lasting(const Selection& selection) {
  Selection lasting = selection;
  for (SelectionPart& part : lasting.parts) {
    const bool picks_change =
        std::any_of(part.items.begin(), part.items.end(),
                    [](const SelectionItem& item) { return changes(item) && is_pick_of_gpus(item); });
    std::erase_if(part.items, [&](const SelectionItem& item) {
      return changes(item) || (picks_change && is_pick_of_gpus(item));
    });
    if (part.items.empty()) part.items.emplace_back();  // all
  }
  return lasting;
}

int cores_of(const Host& host, bool simulated) {
  return simulated && host.cores.empty() ? 0 : host.num_cores;
}

class Reach {
 public:
  Reach(const std::string& on, const Inventory& inventory, const VisibilityMasks& masks, const Scores& scores)
      : inventory_(inventory), masks_(masks), scores_(scores), selection_(parse_selection(on)) {
    reachable_.on = on;
    lasting_ = lasting(selection_);
    std::vector<const Host*> hosts;
    for (const Host& host : inventory.hosts) hosts.push_back(&host);
    check_selection_hosts(selection_, hosts);
  }

  ReachableGpus find() {
    for (const Host& host : inventory_.hosts) add(host);
    const bool none = std::all_of(reachable_.hosts.begin(), reachable_.hosts.end(),
                                  [](const ReachableHost& host) { return host.gpus.empty(); });
    if (!none) reachable_.why_none.clear();
    return std::move(reachable_);
  }

 private:
  void add(const Host& host) {
    const UsableGpus usable = usable_gpus(host, masks_);
    ReachableHost found{.name = host.name, .num_cores = cores_of(host, inventory_.simulated)};
    if (const SelectionPart* const part = part_for(selection_, host)) {
      try {
        for (const UsableGpu& device : select_gpus(lasting_, host, usable, scores_)) {
          found.gpus.push_back({total_memory_bytes(host, device), model_of(host, device)});
        }
        found.most = std::min(most_of(*part), found.gpus.size());
      } catch (const Error& error) {
        const auto* const selection = dynamic_cast<const SelectionError*>(&error);
        explain(cat("on = '", reachable_.on,
                    "': ", selection == nullptr ? error.message() : selection->problem()));
      }
    }
    if (found.gpus.empty()) explain(describe(host, usable));
    const auto facts = std::tuple(found.num_cores, found.most, found.gpus);
    if (seen_.insert(facts).second) reachable_.hosts.push_back(std::move(found));
  }

  void explain(const std::string& why) {
    if (reachable_.why_none.empty()) reachable_.why_none = why;
  }

  const Inventory& inventory_;
  const VisibilityMasks& masks_;
  const Scores& scores_;
  Selection selection_;
  Selection lasting_ = {};
  ReachableGpus reachable_ = {};
  std::set<std::tuple<int, size_t, std::vector<ReachableGpu>>> seen_ = {};
};

}  // namespace

ReachableGpus reachable_gpus(const std::string& on, const Inventory& inventory, const VisibilityMasks& masks,
                             const Scores& scores) {
  try {
    return Reach(on, inventory, masks, scores).find();
  } catch (const SelectionError& error) {
    ReachableGpus none{.on = on, .why_none = cat("on = '", on, "': ", error.problem())};
    for (const Host& host : inventory.hosts) {
      none.hosts.push_back({.name = host.name, .num_cores = cores_of(host, inventory.simulated)});
    }
    return none;
  }
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

}  // namespace muster
