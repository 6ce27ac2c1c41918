// A part is resolved in two passes: entries that name devices come first, wherever they stand, and
// then those that choose among what is left. What they picked is put together in the order of the
// entries.
#include "muster/placement/selection/selection.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/placement/selection/error.h"
#include "muster/placement/selection/gpu_facts.h"

namespace muster {
namespace {

using Kind = SelectionItem::Kind;
using Compare = SelectionItem::Compare;
using Devices = std::vector<UsableGpu>;

// Whether the value compares so with the limit, which is the number as written.
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

// The text is a piece of the name in lower case.
bool has_model(const Host& host, const UsableGpu& device, const std::string& piece) {
  return has_text(lower_case(model_of(host, device)), piece);
}

// The ways in which an entry takes part: by narrowing, by naming devices, or by choosing some.
enum class Role { filter, name, choice };

Role role_of(const SelectionItem& item) {
  if (is_one_of(item.kind, Kind::idle, Kind::free, Kind::fastest))
    return Role::choice;
  if (item.excludes || is_one_of(item.kind, Kind::memory, Kind::free_memory, Kind::model))
    return Role::filter;
  return Role::name;
}

// Finds the devices of one host that one part means.
class Resolver {
 public:
  Resolver(const Selection& selection,
           const SelectionPart& part,
           const Host& host,
           const UsableGpus& usable,
           const Scores& scores)
      : selection_(selection), part_(part), host_(host), usable_(usable), scores_(scores) {}

  Devices resolve() {
    left_ = filtered(usable_.gpus, [&](const UsableGpu& device) { return passes(device); });
    const std::vector<SelectionItem>& items = part_.items;
    if (none_of(items, is_pick))
      return left_;
    std::vector<Devices> picks(items.size());  // of each item
    for (const size_t i : indices_of(items)) {
      if (role_of(items[i]) == Role::name)
        picks[i] = take_named(items[i]);
    }
    for (const size_t i : indices_of(items)) {
      if (role_of(items[i]) == Role::choice)
        picks[i] = take_chosen(items[i]);
    }
    Devices selected = concatenated(picks, std::identity());
    std::erase_if(selected, [&](const UsableGpu& device) { return !contains(left_, device); });
    return selected;
  }

 private:
  // Errors of a host end with what it has, so that the user can choose again.
  [[noreturn]] void fail(const SelectionItem& item, const auto&... problem) const {
    fail_at(selection_.text, item.at, cat(problem..., "; ", describe(host_, usable_)));
  }

  int index_of(const UsableGpu& device) const { return gpu_of(host_, device).index.value; }

  // A UUID of a GPU names its instances too.
  bool is_named(const SelectionItem& item, const UsableGpu& device) const {
    if (item.kind == Kind::indices)
      return item.first <= index_of(device) && index_of(device) <= item.last;
    return uuid_of(host_, device).value.starts_with(item.text) ||
           gpu_of(host_, device).uuid.value.starts_with(item.text);
  }

  bool passes(const UsableGpu& device) const {
    return all_of(part_.items, [&](const SelectionItem& item) { return lets_pass(item, device); });
  }

  // A GPU whose memory is not known passes no filter of memory.
  bool lets_pass(const SelectionItem& item, const UsableGpu& device) const {
    if (item.excludes)
      return !is_named(item, device);
    const bool knows = knows_memory(host_, device);
    switch (item.kind) {
      case Kind::memory:
        return knows && compares(item.compare, total_memory_bytes(host_, device), item.bytes);
      case Kind::free_memory:
        return knows && compares(item.compare, free_memory_bytes(host_, device), item.bytes);
      case Kind::model:
        return has_model(host_, device, item.text);
      default:
        return true;
    }
  }

  // Devices that filters left out are named all the same, and dropped at the end.
  Devices named_by(const SelectionItem& item) const {
    if (item.kind == Kind::all)
      return usable_.gpus;
    return item.kind == Kind::indices ? by_indices(item) : by_uuid(item);
  }

  // Takes the devices that the entry names; no other entry may have taken one of them.
  Devices take_named(const SelectionItem& item) {
    Devices named = named_by(item);
    for (const UsableGpu& device : named) {
      if (contains(taken_, device))
        fail(item, "expected each GPU once, got ", label_of(host_, device), " again");
      taken_.push_back(device);
    }
    return named;
  }

  // Every index of a range must be there: a gap is most likely a mistake.
  Devices by_indices(const SelectionItem& item) const {
    Devices found;
    for (int index = item.first; index <= item.last; ++index) {
      const Devices alike = filtered(
          usable_.gpus, [&](const UsableGpu& device) { return index_of(device) == index; });
      if (alike.empty())
        fail(item, "expected the index of a GPU that can be used, got ", index);
      append_all(found, alike);
    }
    return found;
  }

  // Returns one instance, or all of one GPU.
  Devices by_uuid(const SelectionItem& item) const {
    const bool of_instances = item.text.starts_with("MIG-");
    const auto uuid_to_match = [&](const UsableGpu& device) {
      return of_instances ? uuid_of(host_, device).value : gpu_of(host_, device).uuid.value;
    };
    Devices found = filtered(usable_.gpus, [&](const UsableGpu& device) {
      return uuid_to_match(device).starts_with(item.text);
    });
    const Strings uuids = distinct(found, uuid_to_match);
    const std::string device = of_instances ? "a MIG instance" : "a GPU";
    if (found.empty())
      fail(item, "expected the UUID of ", device, " that can be used, got ", shown(item.text));
    if (uuids.size() > 1) {
      fail(item,
           "expected the beginning of one UUID, got ",
           item.text,
           ", which fits ",
           join(uuids, " and "),
           ": give more of it");
    }
    return found;
  }

  bool is_candidate(const SelectionItem& item, const UsableGpu& device) const {
    if (contains(taken_, device))
      return false;
    if (item.kind == Kind::idle)
      return is_idle(host_, device);
    return item.kind == Kind::fastest || gpu_of(host_, device).processes.empty();
  }

  // Takes the best of the devices that no entry has taken so far.
  Devices take_chosen(const SelectionItem& item) {
    Devices candidates =
        filtered(left_, [&](const UsableGpu& device) { return is_candidate(item, device); });
    if (item.kind == Kind::free) {
      std::ranges::stable_sort(candidates, {}, [&](const UsableGpu& device) {
        return load_of(host_, device).used_memory_bytes;
      });
    } else if (item.kind == Kind::fastest) {
      sort_by_score(item, candidates);
    }
    if (item.kind != Kind::idle)
      shorten(item, candidates);
    append_all(taken_, candidates);
    return candidates;
  }

  // Every candidate needs a score, since one without could be the fastest.
  void sort_by_score(const SelectionItem& item, Devices& devices) const {
    const auto score = [&](const UsableGpu& device) {
      return score_of(scores_, host_, device);
    };
    const auto has_none = [&](const UsableGpu& device) {
      return !score(device);
    };
    if (const UsableGpu* const unknown = element_where(devices, has_none)) {
      fail(item,
           "expected a score for each GPU, got none for ",
           label_of(host_, *unknown),
           " (measure them with `muster bench device`, or give `muster run` --scores FILE with "
           "all of them)");
    }
    std::ranges::stable_sort(devices, std::greater(), score);
  }

  // Leaves as many candidates as the entry counts.
  void shorten(const SelectionItem& item, Devices& candidates) const {
    if (std::ssize(candidates) < item.count) {
      const auto labels =
          mapped(candidates, [&](const UsableGpu& device) { return label_of(host_, device); });
      fail(item,
           "expected ",
           plural(item.count, "GPU"),
           item.kind == Kind::free ? " with no compute process" : "",
           ", got ",
           labels.size(),
           framed(" (", join(labels, ", "), ")"));
    }
    candidates.resize(item.count);
  }

  const Selection& selection_;
  const SelectionPart& part_;
  const Host& host_;
  const UsableGpus& usable_;
  const Scores& scores_;
  Devices left_;   // after filters and exclusions
  Devices taken_;  // by an entry
};

}  // namespace

// A host that is misspelt would otherwise give its GPUs to nobody.
void check_selection_hosts(const Selection& selection, const std::vector<const Host*>& hosts) {
  for (const SelectionPart& part : selection.parts) {
    if (part.host.empty() || contains(hosts, part.host, &Host::name))
      continue;
    constexpr size_t kMaxNamed = 8;
    auto names = mapped(hosts, &Host::name);
    fail_at(selection.text,
            part.at,
            cat("expected a host of the job (",
                join_first(std::move(names), ", ", kMaxNamed),
                "), got ",
                shown(part.host)));
  }
}

bool is_pick(const SelectionItem& item) {
  return role_of(item) != Role::filter;
}

bool names_each(const SelectionPart& part) {
  return all_of(part.items, [](const SelectionItem& item) {
    return role_of(item) == Role::name && item.kind != Kind::all;
  });
}

// Either one part is for all hosts, or each part for its own.
const SelectionPart* part_for(const Selection& selection, const Host& host) {
  return element_where(selection.parts, [&](const SelectionPart& part) {
    return part.host.empty() || part.host == host.name;
  });
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
