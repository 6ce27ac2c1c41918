// Schedule: what is kept for the tasks that wait, so that those that come after them are not in their way.
#include <algorithm>
#include <limits>
#include <tuple>

#include "muster/tasks/schedule.h"

namespace muster {

// Devices that are kept are had only by who is gone before they are needed.
std::optional<TaskStart> Schedule::place(const Kind& kind, size_t task, double now) const {
  const bool timed = !options_.durations.empty();
  const Hold later = timed ? kept_beyond(now + duration(task)) : Hold();
  for (size_t i = 0; i < kind.needs.size(); ++i) {
    if (auto where = pool_.find(kind.needs[i], kind.allowed, timed ? later : hold_))
      return TaskStart{.task = task, .alternative = i, .where = std::move(*where)};
  }
  return std::nullopt;
}

void Schedule::look_what_is_free() {
  if (!options_.durations.empty()) return;  // what is kept may be had too
  free_gpus_ = pool_.has_free_gpu(hold_);
  free_cpus_ = pool_.has_free_cpu(hold_);
}

// Else the tasks can neither start nor be passed.
bool Schedule::has_use_for_what_is_free(const Kind& kind) const {
  return std::any_of(kind.needs.begin(), kind.needs.end(), [&](const TaskNeed& need) {
    return (need.gpus > 0 && free_gpus_) || (free_cpus_ && pool_.counts_cpus(need));
  });
}

// What is kept for tasks that may start before `end`.
Hold Schedule::kept_beyond(double end) const {
  Hold hold;
  for (const Kept& kept : kept_) {
    if (end <= kept.from + 1e-9) continue;
    for (const Claim& claim : kept.claims) pool_.keep(claim, hold);
  }
  return hold;
}

void Schedule::keep_for(const Kind& kind, size_t task, double now) {
  Kept kept{.task = task};
  if (options_.durations.empty()) {
    kept.from = -std::numeric_limits<double>::infinity();
    kept.places = places_for(kind);
    const auto places = std::min<size_t>(kept.places.size(), 1 + states_[task].passed / patience(kind));
    for (size_t i = 0; i < places; ++i) keep_next(kind, kept);
  } else if (auto [claim, from] = first_chance(kind, now); claim) {
    kept.from = from;
    kept.claims.push_back(std::move(*claim));
    pool_.keep(kept.claims.back(), hold_);
  }
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

// One more of its places.
void Schedule::keep_next(const Kind& kind, Kept& kept) {
  const Place& place = kept.places[kept.claims.size()];
  auto claim = pool_.claim(kind.needs[place.alternative], kind.allowed, place.host, hold_);
  kept.claims.push_back(claim ? std::move(*claim) : Claim{.host = place.host});
  pool_.keep(kept.claims.back(), hold_);
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

// With durations known: where and when the task can start as those that run end, soonest first; beside what
// is kept for the tasks before it, as far as that can be.
std::pair<std::optional<Claim>, double> Schedule::first_chance(const Kind& kind, double now) {
  std::vector<std::pair<double, const Allocation*>> ends;
  for (const auto& [number, running] : running_)
    ends.emplace_back(running.began + duration(number), &running.where);
  std::sort(ends.begin(), ends.end());
  std::pair<std::optional<Claim>, double> chance = {std::nullopt, now};
  for (const Hold& beside : {hold_, Hold()}) {
    size_t given_back = 0;
    while (!chance.first && given_back < ends.size()) {
      pool_.give_back(*ends[given_back++].second);
      for (const TaskNeed& need : kind.needs) {
        const auto where = pool_.find(need, kind.allowed, beside);
        if (!where) continue;
        chance = {Claim{.host = where->host, .gpus = where->gpus, .cpus = where->cpus},
                  std::max(now, ends[given_back - 1].first)};
        break;
      }
    }
    for (size_t i = 0; i < given_back; ++i) pool_.take(*ends[i].second);
    if (chance.first) break;
  }
  return chance;
}

}  // namespace muster
