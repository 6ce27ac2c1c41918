// A selection is split into what lasts and what changes. What lasts is applied to the hosts as they
// are; what changes (idle GPUs, free memory) could come to mean any GPU that the rest leaves, of
// which at most as many as the picks name at one time. What the selection counts must be there:
// that is tried on hosts that nobody uses.
#include "muster/tasks/schedule/reachable_gpus.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/tasks/schedule/device_pool.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;

// Whether what the item means depends on the moment.
bool changes(const SelectionItem& item) {
  return is_one_of(item.kind, Kind::idle, Kind::free, Kind::free_memory);
}

bool has_changes(const SelectionPart& part) {
  return any_of(part.items, [](const SelectionItem& item) { return changes(item); });
}

// Whether what the part's picks mean depends on the moment: by themselves, or because they choose
// among GPUs that are others at another moment. `among_changing`: whatever the part says.
bool picks_change(const SelectionPart& part, bool among_changing) {
  const bool fastest_changes = among_changing || has_changes(part);
  return any_of(part.items, [&](const SelectionItem& item) {
    return is_pick(item) && (changes(item) || (fastest_changes && item.kind == Kind::fastest));
  });
}

// What lasts of a filter of free memory: so much must be there in all.
SelectionItem lasting(SelectionItem item) {
  if (item.kind != Kind::free_memory)
    return item;
  using Compare = SelectionItem::Compare;
  item.kind = Kind::memory;
  if (is_one_of(item.compare, Compare::less, Compare::at_most))
    item.bytes = 0;
  if (item.compare != Compare::more)
    item.compare = Compare::at_least;
  return item;
}

// How many of the `reachable` GPUs the pick could come to. An index or a UUID of a GPU that is
// split by MIG stands for all of its instances.
size_t most_of(const SelectionItem& pick, const UsableGpuList& reachable) {
  if (is_one_of(pick.kind, Kind::free, Kind::fastest))
    return pick.count;
  const bool some_are_split = any_of(reachable, &UsableGpu::is_instance);
  if (is_one_of(pick.kind, Kind::all, Kind::idle) || some_are_split)
    return reachable.size();
  return pick.kind == Kind::uuid ? 1 : pick.last - pick.first + 1;
}

// How many of the `reachable` GPUs the part could come to at one time.
size_t most_of(const SelectionPart& part, bool among_changing, const UsableGpuList& reachable) {
  if (!picks_change(part, among_changing))
    return reachable.size();
  size_t most = 0;
  for (const SelectionItem& pick : filtered(part.items, is_pick))
    most += most_of(pick, reachable);
  return std::min(most, reachable.size());
}

// The selection without what `is_dropped` names, of a part and its item.
template <class IsDropped>
Selection lasting_without(Selection selection, const IsDropped& is_dropped) {
  for (SelectionPart& part : selection.parts) {
    std::vector<SelectionItem> left =
        filtered(part.items, [&](const SelectionItem& item) { return !is_dropped(part, item); });
    part.items = mapped(left, lasting);
    if (part.items.empty())
      part.items.emplace_back();  // all
  }
  return selection;
}

// The selection without what changes. Where some picks change, any GPU that the rest leaves could
// be theirs.
Selection without_changes(const Selection& selection, bool among_changing) {
  return lasting_without(selection, [&](const SelectionPart& part, const SelectionItem& item) {
    return is_pick(item) && picks_change(part, among_changing);
  });
}

// The selection with all that it names and counts, whichever GPUs are chosen. On a host that nobody
// uses it is an error only where it is one at every moment.
Selection only_counting(const Selection& selection) {
  Selection counting = lasting_without(
      selection,
      [](const SelectionPart&, const SelectionItem& item) { return item.kind == Kind::idle; });
  for (SelectionPart& part : counting.parts) {
    for (SelectionItem& item : part.items)
      item.kind = item.kind == Kind::fastest ? Kind::free : item.kind;
  }
  return counting;
}

Host without_users(Host host) {
  for (Gpu& gpu : host.gpus)
    gpu.processes.clear();
  return host;
}

// How many cores tasks may use of the host; 0 if a file has told none.
int cores_of(const Host& host, const ReachOptions& options) {
  if (options.cpus > 0)
    return options.cpus;
  const bool is_told = !options.inventory.simulated || !host.cores.empty();
  return is_told ? host.num_cores : 0;
}

// A selection whose hosts the inventory has, and what lasts of it. `among_changing`: it chooses
// among GPUs that are others at another moment.
struct CheckedSelection {
  Selection given{};
  bool among_changing = false;
  bool changes = false;  // somewhere
  Selection lasting{};
  Selection counting{};

  CheckedSelection(const Selection& selection, const Inventory& inventory, bool among)
      : given(selection),
        among_changing(among),
        changes(among || any_of(selection.parts,
                                [](const SelectionPart& part) { return has_changes(part); })),
        lasting(without_changes(selection, among)),
        counting(only_counting(selection)) {
    check_selection(given, inventory);
  }

  // The GPUs that it could give of the host, now or ever. Throws: SelectionError where it never
  // gives any.
  UsableGpuList reach(const Host& host, const UsableGpus& usable, const Scores& scores) const {
    if (changes)
      (void)select_gpus(counting, without_users(host), usable);
    return select_gpus(lasting, host, usable, scores);
  }

  size_t most(const SelectionPart& part, const UsableGpuList& reachable) const {
    return most_of(part, among_changing, reachable);
  }
};

// Goes through the hosts one by one and gathers what `on` gives on each.
class Reach {
 public:
  Reach(const std::string& on, const ReachOptions& options) : options_(options) {
    if (options.gpus)
      run_.emplace(*options.gpus, options.inventory, false);
    reachable_.on = on;
    try {
      on_.emplace(Selection(on), options.inventory, run_ && run_->changes);
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
    if (any_of(reachable_.hosts, has_gpus))
      reachable_.why_none.clear();
    if (fits_a_host_ && !named_host_fails_)
      reachable_.on_problem.clear();
    return std::move(reachable_);
  }

 private:
  // The GPUs that the run could have of a host, and how many of these at one time.
  struct RunGpus {
    UsableGpus usable{};
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
    chosen.gpus = run_->reach(host, all, options_.scores);
    return {chosen, run_->most(*part, chosen.gpus)};
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
      const auto reachable = on_->reach(host, run.usable, options_.scores);
      for (const UsableGpu& gpu : reachable)
        found.gpus.push_back({total_memory_bytes(host, gpu), model_of(host, gpu)});
      found.most = std::min(run.most, on_->most(part, reachable));
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
  std::optional<CheckedSelection> run_;
  std::optional<CheckedSelection> on_;
  ReachableGpus reachable_;
  bool fits_a_host_ = false;
  bool named_host_fails_ = false;  // one that `on` speaks of by its name
  std::set<std::tuple<int, size_t, std::vector<ReachableGpu>>> seen_;
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
