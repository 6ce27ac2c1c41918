// Schedule: what is kept for the tasks that wait, so that those that come after them are not in their way.
#include <algorithm>
#include <tuple>

#include "muster/tasks/schedule/schedule.h"

namespace muster {

std::optional<TaskStart> Schedule::place(const Kind& kind, size_t task) const {
  for (size_t i = 0; i < kind.needs.size(); ++i) {
    if (auto where = pool_.find(kind.needs[i], kind.allowed, hold_))
      return TaskStart{.task = task, .alternative = i, .where = std::move(*where)};
  }
  return std::nullopt;
}

void Schedule::look_what_is_free() {
  free_gpus_ = pool_.has_free_gpu(hold_);
  free_cpus_ = pool_.has_free_cpu(hold_);
}

// Else the tasks can neither start nor be passed.
bool Schedule::has_use_for_what_is_free(const Kind& kind) const {
  return std::any_of(kind.needs.begin(), kind.needs.end(), [&](const TaskNeed& need) {
    return (need.gpus > 0 && free_gpus_) || (free_cpus_ && pool_.counts_cpus(need));
  });
}

void Schedule::keep_for(const Kind& kind, size_t task) {
  Kept kept{.task = task, .places = places_for(kind)};
  const auto places = std::min<size_t>(kept.places.size(), 1 + states_[task].passed / patience(kind));
  for (size_t i = 0; i < places; ++i) keep_next(kind, kept);
  kept_.push_back(std::move(kept));
}

// Where a task of the kind could be, the place that lacks least first.
std::vector<Schedule::Place> Schedule::places_for(const Kind& kind) const {
  std::vector<std::pair<std::tuple<size_t, int, int>, Place>> found;
  for (size_t i = 0; i < kind.needs.size(); ++i) {
    for (int host = 0; host < static_cast<int>(pool_.hosts().size()); ++host) {
      const auto claim = pool_.claim(kind.needs[i], kind.allowed, host, hold_);
      if (claim) found.push_back({{i, claim->missing_gpus, claim->missing_cpus}, {i, host}});
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Place> places;
  places.reserve(found.size());
  for (const auto& [order, place] : found) places.push_back(place);
  return places;
}

// One more of its places. Of those on one host it takes one, so that what is kept for the others does for
// this one too.
void Schedule::keep_next(const Kind& kind, Kept& kept) {
  const Place& place = kept.places[kept.claims.size()];
  const bool again = std::any_of(kept.claims.begin(), kept.claims.end(),
                                 [&](const Claim& own) { return own.host == place.host; });
  Claim claim = pool_
                    .claim(kind.needs[place.alternative], kind.allowed, place.host,
                           again ? kept_beside(kept.task) : hold_)
                    .value_or(Claim{.host = place.host});
  for (const Claim& own : kept.claims) {
    if (own.host == place.host) claim.cpus -= own.cpus;
  }
  claim.cpus = std::max(0, claim.cpus);
  pool_.keep(claim, hold_);
  kept.claims.push_back(std::move(claim));
}

// For all other tasks.
Hold Schedule::kept_beside(size_t task) const {
  Hold hold;
  for (const Kept& kept : kept_) {
    if (kept.task == task) continue;
    for (const Claim& claim : kept.claims) pool_.keep(claim, hold);
  }
  return hold;
}

// Starts that may pass a task on a place that is not kept for it, before that is.
int Schedule::patience(const Kind& kind) {
  int most = 1;
  for (const TaskNeed& need : kind.needs) most = std::max(most, gpus_of(need));
  return most;
}

// A start on a device that a task before it waits for.
void Schedule::count_passing(const TaskStart& start) {
  for (Kept& kept : kept_) {
    if (kept.claims.size() >= kept.places.size()) continue;
    const Kind& kind = kinds_[states_[kept.task].kind];
    const bool passes = std::any_of(kind.needs.begin(), kind.needs.end(), [&](const TaskNeed& need) {
      return pool_.in_the_way(start.where, need, kind.allowed);
    });
    if (passes && ++states_[kept.task].passed % patience(kind) == 0) keep_next(kind, kept);
  }
}

}  // namespace muster
