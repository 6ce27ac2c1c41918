// Finds ranks that call different collectives, or one with different shapes. The mistake otherwise
// hangs a job, corrupts sums, or (Gloo, unequal sizes) ends the process from another thread.
//
// Every call has a sequence number and a signature ("all_reduce sum float [3, 4]"). A rank that
// uses a signature for the first time publishes it and waits for the others' at that number before
// it touches the wire; a rank whose operation stays unanswered for a second publishes its own and
// looks again. So either all pass, or all see both sides. In the steady state nothing is published.
// With `every_call` (TORCH_DISTRIBUTED_DEBUG=DETAIL) every call is. A rank takes back what it has
// published when all have come to a later call that is compared before it begins.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/late_ranks.h"
#include "muster/base/lists.h"
#include "muster/base/rank_names.h"
#include "muster/base/strings.h"
#include "muster/comm/call/c10d_pointers.h"

namespace muster {

// The signature of a rank that leaves the group, in good order.
inline constexpr auto kLeaving = "shutdown";

// A rank that has given up the group after a failure publishes this where its next call would be.
inline constexpr auto kGivenUp = "gave up the group";

// The same of one whose group was ended by an exception of the program.
inline constexpr auto kThrown = "ended by an exception";

class Agreement {
 public:
  // Messages call the ranks by `names`, or without any by their own numbers.
  Agreement(StorePtr store, int rank, int size, bool every_call, RankNames names = {});

  // Before an operation; one after the other, in the order of their numbers. Collective (when the
  // signature is new). Blocking: until every rank published. Throws: invalid_argument showing both
  // signatures; timeout naming the ranks that did not come.
  void before(int64_t sequence, const std::string& signature, milliseconds timeout);

  // While an operation stays unanswered: publishes, and throws invalid_argument if a published one
  // differs.
  void look_again(int64_t sequence, const std::string& signature);

  // Only publishes: for an operation that stays unanswered while nobody here waits for it.
  void show(int64_t sequence, const std::string& signature);

  // Of an operation that was shown and to which all ranks have come.
  void take_back(int64_t sequence);

  // Says that this rank makes no more calls, so that nobody waits for the one at `sequence`.
  void give_up(int64_t sequence, const char* word = kGivenUp);

  // Warns of ranks that have not come to an operation for which this one waits.
  void tell_of_late(int64_t sequence, const std::string& operation, const LateRanks& late_ranks);

  // GPUs' operations begin without waiting for other ranks, so that the ranks' numbers differ. Says
  // that this rank waits for the one at `sequence`, or (nothing) for none any more.
  void say_waiting(std::optional<int64_t> sequence);

  // Returns the other ranks that do not say that they wait.
  Ints not_waiting();

  // Warns of the ranks that do not say that they wait too.
  void tell_of_not_waiting(int64_t sequence,
                           const std::string& operation,
                           const LateRanks& late_ranks);

  // Returns the ranks that have published nothing at `sequence`: nobody knows where they are, but
  // not here. There are none where all have come to a later call.
  Ints absent(int64_t sequence);

 private:
  std::string key(int64_t sequence, int rank) const;
  void publish(int64_t sequence, const std::string& signature);
  // Blocking: for one round trip.
  std::optional<std::string> published_by(int other, int64_t sequence);
  std::string wait_for(int other,
                       int64_t sequence,
                       const std::string& signature,
                       const Deadline& deadline,
                       LateRanks& late_ranks);
  void compare(int64_t sequence,
               const std::string& mine,
               int other,
               const std::string& theirs) const;
  void tell(int64_t sequence,
            const std::string& operation,
            const Ints& late,
            const LateRanks& late_ranks) const;
  void all_have_come(int64_t sequence, const std::string& signature);

  StorePtr store_;
  const int rank_;
  const int size_;
  const RankNames names_;
  const bool every_call_;
  std::mutex mutex_;
  StringSet known_;
  std::set<int64_t> published_;       // numbers whose keys are in the store
  std::atomic<int64_t> common_ = -1;  // the last that all ranks have published
};

}  // namespace muster
