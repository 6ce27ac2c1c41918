// Ranks of one host that share memory and go through steps together. A step is the only means of
// order: a rank that has waited for all may read what any of them wrote before it arrived. One
// thread of a rank at a time may use it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/indices_of.h"
#include "muster/base/late_ranks.h"
#include "muster/base/lists.h"
#include "muster/base/no_copy.h"
#include "muster/base/rank_names.h"
#include "muster/shm/layout.h"
#include "muster/shm/meet.h"
#include "muster/shm/peer_watch.h"

namespace muster::shm {

// A rank waits for a step, which messages name: "all_reduce #12"; without a number where that is 0.
struct Step {
  const char* name;
  uint64_t number = 0;
};
std::string to_string(const Step& step);

class Team : NoCopy {
 public:
  // Collective. Messages call the ranks by `names`, or without any by their own numbers. Throws: as
  // meet().
  Team(const Exchange& exchange, int rank, int size, milliseconds timeout, RankNames names = {});
  ~Team();  // leaves

  int rank() const { return rank_; }
  int size() const { return met_.layout.size; }
  int name(int rank) const { return names_[rank]; }
  std::string here() const;                  // "on rank 1 of 4"
  std::string here(const Step& what) const;  // "all_reduce #12 on rank 1 of 4"
  // " (group of ranks 0, 2)", of a part of the job.
  std::string group() const { return names_.group(); }
  // The same on all ranks.
  const Layout& layout() const { return met_.layout; }
  const std::shared_ptr<SharedMemory>& memory() const { return met_.memory; }
  std::byte* at(size_t offset) const { return met_.at(offset); }
  Line& line(int rank) const { return met_.line(rank); }
  Call& call(int rank, uint64_t sequence) const {
    return *reinterpret_cast<Call*>(at(met_.layout.slot(rank, sequence)));
  }

  // Calls `body` with the number of every rank but this one.
  template <class Body>
  void for_others(const Body& body) const {
    for (const int rank : indices_below(size())) {
      if (rank != rank_)
        body(rank);
    }
  }

  // This rank has come to its next step.
  void arrive();

  // Whether all have come to the step at which this rank is. It looks for no longer than `patience`
  // and never sleeps. With `gives_way` it lets others have its processor, which on a busy machine
  // is for a whole time slice.
  bool all_there(std::chrono::nanoseconds patience = {}, bool gives_way = true) const;

  // The time for which wait_for_all keeps the processor (giving way to others where ranks are
  // crowded) before it sleeps. Being woken takes longer than most steps, and a rank that sleeps
  // makes the next step late for all.
  void set_patience(std::chrono::nanoseconds patience) { patience_ = patience; }

  // Waits until all have come; messages name the step as `what`. Throws: peer_failed naming a rank
  // that ended, left or failed; timeout naming those that have not come. After either the team is
  // of no more use, and the others are told so.
  void wait_for_all(const Step& what, const Deadline& deadline);

  // This rank will not go on: nobody is to wait for it, nor does it wait for anybody. For any
  // thread.
  void give_up();

  // The reason why those who are missing will not come; empty where they may.
  std::string failure(const Ints& missing) const;

  // Throws: failed_precondition when this rank has given up; peer_failed when another has, or has
  // ended.
  void check_here(const Step& what) const;
  void check_all_here(const Step& what) const;
  // Throws: peer_failed when another rank has given up. One that has ended since is no failure.
  void check_nobody_gave_up(const Step& what) const;

  // Wakes everybody who sleeps, to look at the ranks' states.
  void ring_all() const;

  // Fewer processors than ranks: one that spins may keep another from running.
  bool crowded() const { return crowded_; }

 private:
  void introduce();
  void meet_as_processes(milliseconds timeout);
  void count_processors();
  void drop_connections();
  bool has_come(int rank) const {
    return line(rank).arrived.load(std::memory_order_acquire) >= step_;
  }
  Ints missing() const;
  void check_states(const Step& what, bool (*is_wrong)(RankState)) const;
  Ints in_state(RankState state, const Ints& ranks) const;
  void check_going_on(const Step& what, const Ints& late, const Deadline& deadline);
  void sleep_for(int peer, const Deadline& deadline);
  void tell_of(const Ints& late, const Step& what, const LateRanks& late_ranks) const;

  Met met_;
  int rank_;
  RankNames names_;
  uint64_t step_ = 0;
  bool crowded_ = false;
  std::chrono::nanoseconds patience_{std::chrono::microseconds(50)};
  std::unique_ptr<PeerWatch> watch_;
};

}  // namespace muster::shm
