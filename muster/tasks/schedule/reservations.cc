// Each pass of starts begins with nothing reserved. Every task that cannot start then reserves its
// first places, as many as its backfilled starts have earned it, and what comes after it in the
// pass gets what is left.
#include "muster/tasks/schedule/reservations.h"

#include <algorithm>
#include <ranges>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"

namespace muster {

namespace {

// How many starts may be let in on places that are not reserved for the wish before one more place
// is reserved for it.
int patience(const TaskWish& wish) {
  return max_of(wish.needs, gpus_of, 1);
}

}  // namespace

void Reservations::clear(const DevicePool& pool) {
  all_.clear();
  reserved_.clear();
  look(pool);
}

void Reservations::look(const DevicePool& pool) {
  free_gpus_ = has_free_gpu(pool, reserved_);
  free_cpus_ = has_free_cpu(pool, reserved_);
}

bool Reservations::has_use_for_what_is_left(const TaskWish& wish, const DevicePool& pool) const {
  return any_of(wish.needs, [&](const TaskNeed& need) {
    return (need.gpus > 0 && free_gpus_) || (free_cpus_ && pool.counts_cpus(need));
  });
}

void Reservations::add(size_t task, const TaskWish& wish, const DevicePool& pool) {
  Reservation reservation{.task = task, .wish = &wish, .places = places_for(wish, pool)};
  const auto places =
      std::min<size_t>(reservation.places.size(), 1 + backfilled_[task] / patience(wish));
  for (size_t i = 0; i < places; ++i)
    reserve_next(reservation, pool);
  all_.push_back(std::move(reservation));
}

// Every place where the task could be, the one that lacks least first.
std::vector<Reservation::Place> Reservations::places_for(const TaskWish& wish,
                                                         const DevicePool& pool) const {
  using Order = std::tuple<size_t, int, int>;  // alternative, missing GPUs, missing CPUs
  std::vector<std::pair<Order, Reservation::Place>> found;
  for (const size_t i : indices_of(wish.needs)) {
    for (const int host : int_indices_of(pool.hosts())) {
      const auto claim = claim_on(pool, host, wish.needs[i], wish.allowed, reserved_);
      if (claim)
        found.push_back({{i, claim->missing_gpus, claim->missing_cpus}, {i, host}});
    }
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  const auto places = std::views::values(found);
  return {places.begin(), places.end()};
}

// Reserves one more of its places. Two places on one host overlap, so that the second is reckoned
// beside what others have reserved, and adds only the CPUs that the first has not.
void Reservations::reserve_next(Reservation& reservation, const DevicePool& pool) {
  const Reservation::Place& place = reservation.places[reservation.claims.size()];
  const TaskWish& wish = *reservation.wish;
  int own_cpus = 0;
  bool has_place_there = false;
  for (const Claim& own : reservation.claims) {
    if (own.host != place.host)
      continue;
    has_place_there = true;
    own_cpus += own.cpus;
  }
  const Reserved beside = has_place_there ? reserved_beside(reservation.task, pool) : Reserved();
  const Reserved& others = has_place_there ? beside : reserved_;
  const TaskNeed& need = wish.needs[place.alternative];
  Claim claim =
      claim_on(pool, place.host, need, wish.allowed, others).value_or(Claim{.host = place.host});
  claim.cpus = std::max(0, claim.cpus - own_cpus);
  reserve(pool, claim, reserved_);
  reservation.claims.push_back(std::move(claim));
}

// The reservations of all other tasks.
Reserved Reservations::reserved_beside(size_t task, const DevicePool& pool) const {
  Reserved reserved;
  for (const Reservation& other : all_) {
    if (other.task == task)
      continue;
    for (const Claim& claim : other.claims)
      reserve(pool, claim, reserved);
  }
  return reserved;
}

// Each start that passes a waiting task by counts; when its patience is over, one more of its
// places is reserved.
void Reservations::count_backfill(const Allocation& where, const DevicePool& pool) {
  for (Reservation& waits : all_) {
    // Nothing is left that could be reserved for it.
    if (waits.claims.size() >= waits.places.size())
      continue;
    const TaskWish& wish = *waits.wish;
    const bool passes = any_of(wish.needs, [&](const TaskNeed& need) {
      return in_the_way(pool, where, need, wish.allowed);
    });
    if (passes && ++backfilled_[waits.task] % patience(wish) == 0)
      reserve_next(waits, pool);
  }
}

}  // namespace muster
