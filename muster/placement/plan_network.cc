// The nearest switch is named by its whole path, since two racks may name theirs alike.
#include "muster/placement/plan_network.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/device/cpu_list.h"

namespace muster {
namespace {

constexpr size_t kMaxNamed = 8;

// The path of each rank's host as a text; empty: the network does not name it.
Strings places_of(const Plan& plan, const SwitchPaths& switches) {
  Strings places;
  const std::string* last_host = nullptr;
  for (const RankPlan& rank : plan.ranks) {
    const bool is_beside = last_host != nullptr && *last_host == rank.host;
    places.push_back(is_beside ? places.back() : join(switches_of(switches, rank.host), "/"));
    last_host = &rank.host;
  }
  return places;
}

void note_places(const Plan& plan, const Strings& places, PlanNotes& notes) {
  Strings order;
  std::map<std::string, Ints> ranks;
  StringSet unknown;
  for (const size_t i : indices_of(places)) {
    if (places[i].empty()) {
      unknown.insert(plan.ranks[i].host);
      continue;
    }
    if (!ranks.contains(places[i]))
      order.push_back(places[i]);
    ranks[places[i]].push_back(plan.ranks[i].rank);
  }
  auto told = mapped(
      order, [&](const auto& place) { return cat(to_cpu_list(ranks[place]), " below ", place); });
  if (!told.empty())
    notes.add(cat("network: ranks ", join_first(std::move(told), ", ", kMaxNamed)));
  if (unknown.empty())
    return;
  const Strings names(unknown.begin(), unknown.end());
  notes.warn(cat("--topology names no switch above ", join_first(names, ", ", kMaxNamed)));
}

// How many groups along each axis have ranks below more than one nearest switch.
void note_axes(const Plan& plan, const Strings& places, PlanNotes& notes) {
  Strings told;
  for (const MeshAxis& axis : plan.mesh.axes) {
    const auto groups = plan.mesh.groups({axis.name});
    const auto crosses = [&](const Ints& ranks) {
      return any_of(ranks, [&](int r) { return places[r] != places[ranks.front()]; });
    };
    const auto across = std::ranges::count_if(groups, crosses);
    told.push_back(cat(axis.name, " ", across, " of ", groups.size()));
  }
  if (!told.empty())
    notes.add(cat("groups of ranks that cross switches: ", join(told, ", ")));
}

}  // namespace

void tell_network(Plan& plan, const SwitchPaths& switches, PlanNotes& notes) {
  if (switches.empty())
    return;
  const Strings places = places_of(plan, switches);
  for (const size_t i : indices_of(places))
    if (!places[i].empty())
      plan.ranks[i].reason += cat("; below ", places[i]);
  note_places(plan, places, notes);
  note_axes(plan, places, notes);
}

}  // namespace muster
