#include "muster/placement/selection/selection.h"

#include <algorithm>

#include "muster/base/strings.h"
#include "muster/placement/selection/error.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;
using Compare = SelectionItem::Compare;
using Devices = std::vector<UsableGpu>;

bool contains(const Devices& devices, const UsableGpu& device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

bool compares(Compare compare, uint64_t value, uint64_t limit) {
  switch (compare) {
    case Compare::at_least:
      return value >= limit;
    case Compare::more:
      return value > limit;
    case Compare::at_most:
      return value <= limit;
    case Compare::less:
      return value < limit;
    case Compare::equal:
      break;
  }
  return value == limit;
}

bool has_model(const Host& host, const UsableGpu& device, const std::string& piece) {
  return lower_case(model_of(host, device)).find(piece) != std::string::npos;
}

bool is_filter(const SelectionItem& item) {
  return item.kind == Kind::memory || item.kind == Kind::free_memory || item.kind == Kind::model;
}

bool is_choice(const SelectionItem& item) {
  return item.kind == Kind::idle || item.kind == Kind::free || item.kind == Kind::fastest;
}

// The devices of one host that one part means.
class Resolver {
 public:
  Resolver(const Selection& selection,
           const SelectionPart& part,
           const Host& host,
           const UsableGpus& usable,
           const Scores& scores)
      : selection_(selection), part_(part), host_(host), usable_(usable), scores_(scores) {}

  Devices resolve() {
    std::copy_if(usable_.gpus.begin(),
                 usable_.gpus.end(),
                 std::back_inserter(left_),
                 [&](const UsableGpu& device) { return passes(device); });
    std::vector<Devices> picks(part_.items.size());  // of each item
    bool any_pick = false;
    for (size_t i = 0; i < part_.items.size(); ++i) {
      const SelectionItem& item = part_.items[i];
      if (is_filter(item) || item.excludes)
        continue;
      any_pick = true;
      if (!is_choice(item))
        picks[i] = take_named(item);
    }
    if (!any_pick)
      return left_;
    for (size_t i = 0; i < part_.items.size(); ++i) {
      if (is_choice(part_.items[i]))
        picks[i] = take_chosen(part_.items[i]);
    }
    Devices selected;
    for (const Devices& pick : picks) {
      std::copy_if(
          pick.begin(), pick.end(), std::back_inserter(selected), [&](const UsableGpu& device) {
            return contains(left_, device);
          });
    }
    return selected;
  }

 private:
  [[noreturn]] void fail(const SelectionItem& item, const std::string& problem) const {
    fail_at(selection_.text, item.at, cat(problem, "; ", describe(host_, usable_)));
  }

  int index_of(const UsableGpu& device) const { return gpu_of(host_, device).index.value; }

  bool is_named(const SelectionItem& item, const UsableGpu& device) const {
    if (item.kind == Kind::indices)
      return item.first <= index_of(device) && index_of(device) <= item.last;
    return uuid_of(host_, device).value.starts_with(item.text) ||
           gpu_of(host_, device).uuid.value.starts_with(item.text);
  }

  bool passes(const UsableGpu& device) const {
    return std::all_of(part_.items.begin(), part_.items.end(), [&](const SelectionItem& item) {
      if (item.excludes)
        return !is_named(item, device);
      const bool by_memory = item.kind == Kind::memory || item.kind == Kind::free_memory;
      if (by_memory && !knows_memory(host_, device))
        return false;
      if (item.kind == Kind::memory)
        return compares(item.compare, total_memory_bytes(host_, device), item.bytes);
      if (item.kind == Kind::free_memory)
        return compares(item.compare, free_memory_bytes(host_, device), item.bytes);
      return item.kind != Kind::model || has_model(host_, device, item.text);
    });
  }

  Devices take_named(const SelectionItem& item) {
    Devices named = item.kind == Kind::all       ? usable_.gpus
                    : item.kind == Kind::indices ? by_indices(item)
                                                 : by_uuid(item);
    for (const UsableGpu& device : named) {
      if (contains(taken_, device)) {
        fail(item, cat("expected each GPU once, got ", label_of(host_, device), " again"));
      }
      taken_.push_back(device);
    }
    return named;
  }

  Devices by_indices(const SelectionItem& item) const {
    Devices found;
    for (int index = item.first; index <= item.last; ++index) {
      const size_t before = found.size();
      std::copy_if(usable_.gpus.begin(),
                   usable_.gpus.end(),
                   std::back_inserter(found),
                   [&](const UsableGpu& device) { return index_of(device) == index; });
      if (found.size() == before) {
        fail(item, cat("expected the index of a GPU that can be used, got ", index));
      }
    }
    return found;
  }

  // One instance, or one GPU: then all of it.
  Devices by_uuid(const SelectionItem& item) const {
    Devices found;
    std::vector<std::string> uuids;
    const bool of_instances = item.text.starts_with("MIG-");
    for (const UsableGpu& device : usable_.gpus) {
      const std::string& uuid =
          of_instances ? uuid_of(host_, device).value : gpu_of(host_, device).uuid.value;
      if (!uuid.starts_with(item.text))
        continue;
      found.push_back(device);
      if (uuids.empty() || uuids.back() != uuid)
        uuids.push_back(uuid);
    }
    const std::string device = of_instances ? "a MIG instance" : "a GPU";
    if (found.empty()) {
      fail(item, cat("expected the UUID of ", device, " that can be used, got ", shown(item.text)));
    }
    if (uuids.size() > 1) {
      fail(item,
           cat("expected the beginning of one UUID, got ",
               item.text,
               ", which fits ",
               join(uuids, " and "),
               ": give more of it"));
    }
    return found;
  }

  Devices take_chosen(const SelectionItem& item) {
    Devices candidates;
    std::copy_if(
        left_.begin(), left_.end(), std::back_inserter(candidates), [&](const UsableGpu& device) {
          if (contains(taken_, device))
            return false;
          if (item.kind == Kind::idle)
            return is_idle(host_, device);
          return item.kind == Kind::fastest || gpu_of(host_, device).processes.empty();
        });
    if (item.kind == Kind::free) {
      std::stable_sort(
          candidates.begin(), candidates.end(), [&](const UsableGpu& a, const UsableGpu& b) {
            return load_of(host_, a).used_memory_bytes < load_of(host_, b).used_memory_bytes;
          });
    } else if (item.kind == Kind::fastest) {
      sort_by_score(item, candidates);
    }
    if (item.kind != Kind::idle)
      shorten(item, candidates);
    taken_.insert(taken_.end(), candidates.begin(), candidates.end());
    return candidates;
  }

  void sort_by_score(const SelectionItem& item, Devices& devices) const {
    for (const UsableGpu& device : devices) {
      if (score_of(scores_, host_, device))
        continue;
      fail(item,
           cat("expected a score for each GPU, got none for ",
               label_of(host_, device),
               " (measure them with `muster bench device`, or give `muster run` --scores FILE with "
               "all "
               "of them)"));
    }
    std::stable_sort(devices.begin(), devices.end(), [&](const UsableGpu& a, const UsableGpu& b) {
      return *score_of(scores_, host_, a) > *score_of(scores_, host_, b);
    });
  }

  void shorten(const SelectionItem& item, Devices& candidates) const {
    const auto count = static_cast<size_t>(item.first);
    if (candidates.size() < count) {
      std::vector<std::string> labels;
      for (const UsableGpu& device : candidates)
        labels.push_back(label_of(host_, device));
      fail(item,
           cat("expected ",
               plural(count, "GPU"),
               item.kind == Kind::free ? " with no compute process" : "",
               ", got ",
               labels.size(),
               labels.empty() ? "" : cat(" (", join(labels, ", "), ")")));
    }
    candidates.resize(count);
  }

  const Selection& selection_;
  const SelectionPart& part_;
  const Host& host_;
  const UsableGpus& usable_;
  const Scores& scores_;
  Devices left_ = {};   // after filters and exclusions
  Devices taken_ = {};  // by an entry
};

}  // namespace

void check_selection_hosts(const Selection& selection, const std::vector<const Host*>& hosts) {
  for (const SelectionPart& part : selection.parts) {
    const auto found = std::find_if(
        hosts.begin(), hosts.end(), [&](const Host* host) { return host->name == part.host; });
    if (part.host.empty() || found != hosts.end())
      continue;
    constexpr size_t kMaxNamed = 8;
    std::vector<std::string> names;
    names.reserve(hosts.size());
    for (const Host* const host : hosts)
      names.push_back(host->name);
    fail_at(selection.text,
            part.at,
            cat("expected a host of the job (",
                join_first(std::move(names), ", ", kMaxNamed),
                "), got ",
                shown(part.host)));
  }
}

bool names_each(const SelectionPart& part) {
  using Kind = SelectionItem::Kind;
  return std::all_of(part.items.begin(), part.items.end(), [](const SelectionItem& item) {
    return !item.excludes && (item.kind == Kind::indices || item.kind == Kind::uuid);
  });
}

const SelectionPart* part_for(const Selection& selection, const Host& host) {
  for (const SelectionPart& part : selection.parts) {
    if (part.host.empty() || part.host == host.name)
      return &part;
  }
  return nullptr;
}

std::vector<UsableGpu> select_gpus(const Selection& selection,
                                   const Host& host,
                                   const UsableGpus& usable,
                                   const Scores& scores) {
  const SelectionPart* const part = part_for(selection, host);
  if (part == nullptr)
    return {};
  return Resolver(selection, *part, host, usable, scores).resolve();
}

}  // namespace muster
