#include "muster/tasks/schedule/reservations.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace muster {

namespace {

// Starts that may be let in on a place that is not reserved for it, before that is.
int patience(const TaskWish& wish) {
  int most = 1;
  for (const TaskNeed& need : wish.needs)
    most = std::max(most, gpus_of(need));
  return most;
}

}  // namespace

void Reservations::clear(const Pool& pool) {
  all_.clear();
  reserved_.clear();
  look(pool);
}

void Reservations::look(const Pool& pool) {
  free_gpus_ = has_free_gpu(pool, reserved_);
  free_cpus_ = has_free_cpu(pool, reserved_);
}

bool Reservations::has_use_for_what_is_left(const TaskWish& wish, const Pool& pool) const {
  return std::any_of(wish.needs.begin(), wish.needs.end(), [&](const TaskNeed& need) {
    return (need.gpus > 0 && free_gpus_) || (free_cpus_ && pool.counts_cpus(need));
  });
}

void Reservations::add(size_t task, const TaskWish& wish, const Pool& pool) {
  Reservation reservation{.task = task, .wish = &wish, .places = places_for(wish, pool)};
  const auto places =
      std::min<size_t>(reservation.places.size(), 1 + backfilled_[task] / patience(wish));
  for (size_t i = 0; i < places; ++i)
    reserve_next(reservation, pool);
  all_.push_back(std::move(reservation));
}

// Where a task could be, the place that lacks least first.
std::vector<Reservation::Place> Reservations::places_for(const TaskWish& wish,
                                                         const Pool& pool) const {
  std::vector<std::pair<std::tuple<size_t, int, int>, Reservation::Place>> found;
  for (size_t i = 0; i < wish.needs.size(); ++i) {
    for (int host = 0; host < static_cast<int>(pool.hosts().size()); ++host) {
      const auto claim = claim_on(pool, host, wish.needs[i], wish.allowed, reserved_);
      if (claim)
        found.push_back({{i, claim->missing_gpus, claim->missing_cpus}, {i, host}});
    }
  }
  std::stable_sort(
      found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Reservation::Place> places;
  places.reserve(found.size());
  for (const auto& [order, place] : found)
    places.push_back(place);
  return places;
}

// One more of its places. Of those on one host it takes one, so that what is reserved for the
// others does for this one too.
void Reservations::reserve_next(Reservation& reservation, const Pool& pool) {
  const Reservation::Place& place = reservation.places[reservation.claims.size()];
  const TaskWish& wish = *reservation.wish;
  const bool again = std::any_of(reservation.claims.begin(),
                                 reservation.claims.end(),
                                 [&](const Claim& own) { return own.host == place.host; });
  Claim claim = claim_on(pool,
                         place.host,
                         wish.needs[place.alternative],
                         wish.allowed,
                         again ? reserved_beside(reservation.task, pool) : reserved_)
                    .value_or(Claim{.host = place.host});
  for (const Claim& own : reservation.claims) {
    if (own.host == place.host)
      claim.cpus -= own.cpus;
  }
  claim.cpus = std::max(0, claim.cpus);
  reserve(pool, claim, reserved_);
  reservation.claims.push_back(std::move(claim));
}

// For all other tasks.
Reserved Reservations::reserved_beside(size_t task, const Pool& pool) const {
  Reserved reserved;
  for (const Reservation& other : all_) {
    if (other.task == task)
      continue;
    for (const Claim& claim : other.claims)
      reserve(pool, claim, reserved);
  }
  return reserved;
}

void Reservations::count_backfill(const Allocation& where, const Pool& pool) {
  for (Reservation& waits : all_) {
    if (waits.claims.size() >= waits.places.size())
      continue;
    const TaskWish& wish = *waits.wish;
    const bool passes =
        std::any_of(wish.needs.begin(), wish.needs.end(), [&](const TaskNeed& need) {
          return in_the_way(pool, where, need, wish.allowed);
        });
    if (passes && ++backfilled_[waits.task] % patience(wish) == 0)
      reserve_next(waits, pool);
  }
}

}  // namespace muster
