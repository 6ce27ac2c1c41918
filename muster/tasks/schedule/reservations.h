// Keeps what is reserved for the tasks that wait in one pass of starts, so that those that come
// after them are not in their way, and how many of those were let in elsewhere (backfill). For the
// schedule, whose header says the rule. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "muster/base/lists.h"
#include "muster/tasks/schedule/claim.h"

namespace muster {

// The needs of a task, and the GPUs that it may have.
struct TaskWish {
  TaskNeeds needs{};  // alternatives
  AllowedGpus allowed{};
};

struct Reservation {
  struct Place {
    size_t alternative = 0;
    int host = 0;
  };
  size_t task = 0;
  const TaskWish* wish = nullptr;
  std::vector<Place> places{};  // where it could be, the best first
  // On the first of these: what each needs beyond those before it on the same host.
  std::vector<Claim> claims{};
};

class Reservations {
 public:
  explicit Reservations(size_t num_tasks) : backfilled_(num_tasks, 0) {}

  // A pass begins: nothing is reserved.
  void clear(const DevicePool& pool);

  // To be called when tasks have started, or more is reserved.
  void look(const DevicePool& pool);

  // False when the wish has no use for anything that is left: such tasks can neither start nor be
  // passed.
  bool has_use_for_what_is_left(const TaskWish& wish, const DevicePool& pool) const;

  // The task waits. `wish` must live until the pass ends.
  void add(size_t task, const TaskWish& wish, const DevicePool& pool);

  // A start there, of a task that comes after those that wait.
  void count_backfill(const Allocation& where, const DevicePool& pool);

  // The task waits no more.
  void forget(size_t task) { backfilled_[task] = 0; }

  const Reserved& reserved() const { return reserved_; }
  const std::vector<Reservation>& all() const { return all_; }  // in the order of the tasks

 private:
  std::vector<Reservation::Place> places_for(const TaskWish& wish, const DevicePool& pool) const;
  void reserve_next(Reservation& reservation, const DevicePool& pool);
  Reserved reserved_beside(size_t task, const DevicePool& pool) const;

  Ints backfilled_;  // by task: starts since it waits, on devices that it could use
  std::vector<Reservation> all_;
  Reserved reserved_;      // all of that
  bool free_gpus_ = true;  // there is one that is not reserved
  bool free_cpus_ = true;
};

}  // namespace muster
