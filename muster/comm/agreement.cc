// A signature is published under the call's number and the rank's. The others poll for it, at first
// often and then less, because ranks that call the same come together. Signatures that were
// compared once are known, and cost nothing from then on.
#include "muster/comm/agreement.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/leaving.h"
#include "muster/base/lock.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// The time between two looks at what others have published. A rank that is stuck elsewhere answers
// within a second.
constexpr std::chrono::microseconds kLook{50};
constexpr std::chrono::microseconds kLongestLook{100'000};
// A rank that leaves too early has this time to see it and to say so, before the others fail of it.
constexpr std::chrono::microseconds kHeadStart = 4 * kLongestLook;
// Calls may have ever new shapes. After so many signatures the first ones are new again.
constexpr size_t kMostKnown = 10'000;
// No rank publishes this.
const std::string kNothing = "?";

}  // namespace

Agreement::Agreement(StorePtr store, int rank, int size, bool every_call, RankNames names)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      names_(names.ranks.empty() ? RankNames::of_all(size) : std::move(names)),
      every_call_(every_call) {}

std::string Agreement::key(int64_t sequence, int rank) const {
  return cat("call/", sequence, "/", rank);
}

void Agreement::publish(int64_t sequence, const std::string& signature) {
  if (published_.insert(sequence).second)
    store_->set(key(sequence, rank_), signature);
}

void Agreement::show(int64_t sequence, const std::string& signature) {
  const Lock lock(mutex_);
  publish(sequence, signature);
}

// compareSet() answers with what is there and sets nothing, as that is not kNothing. check() and
// get() would be two round trips, and get() would wait for a key that goes between them.
std::optional<std::string> Agreement::published_by(int other, int64_t sequence) {
  const std::string found = store_->compareSet(key(sequence, other), kNothing, kNothing);
  return found == kNothing ? std::nullopt : std::optional(found);
}

void Agreement::compare(int64_t sequence,
                        const std::string& mine,
                        int other,
                        const std::string& theirs) const {
  if (theirs == mine)
    return;
  if (theirs == kThrown)
    note_lost_rank(names_[other]);
  if (theirs == kGivenUp || theirs == kThrown) {
    throw Error(ErrorCode::peer_failed,
                "collective #",
                sequence,
                " ('",
                mine,
                "')",
                names_.group(),
                ": rank ",
                names_[other],
                theirs == kThrown
                    ? " has ended with an error; see what it says"
                    : " has given up the group after a call that failed; make a new one");
  }
  if (mine == kLeaving)
    throw left_alone(sequence, names_[other], theirs);
  if (theirs == kLeaving) {
    std::this_thread::sleep_for(kHeadStart);
    throw left(sequence, mine, names_[other]);
  }
  throw invalid_argument("collective #",
                         sequence,
                         names_.group(),
                         ": expected the same call on every rank, got '",
                         mine,
                         "' on rank ",
                         names_[rank_],
                         " and '",
                         theirs,
                         "' on rank ",
                         names_[other],
                         "; make all ranks issue the same operations in the same order");
}

// The lock is free while it waits: a rank whose earlier call is stuck says so meanwhile, by
// look_again() in another thread.
void Agreement::before(int64_t sequence, const std::string& signature, milliseconds timeout) {
  {
    const Lock lock(mutex_);
    if (!every_call_ && known_.contains(signature))
      return;
    publish(sequence, signature);
  }
  const Deadline deadline(timeout);
  LateRanks late_ranks(timeout);
  for (const int other : indices_below(size_)) {
    if (other != rank_)
      compare(
          sequence, signature, other, wait_for(other, sequence, signature, deadline, late_ranks));
  }
  all_have_come(sequence, signature);
}

// Returns what the other rank has published for this call.
std::string Agreement::wait_for(int other,
                                int64_t sequence,
                                const std::string& signature,
                                const Deadline& deadline,
                                LateRanks& late_ranks) {
  for (auto pause = kLook;; pause = std::min(pause * 2, kLongestLook)) {
    if (auto theirs = published_by(other, sequence))
      return *std::move(theirs);
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  "collective #",
                  sequence,
                  " ('",
                  signature,
                  "'): waited ",
                  deadline.limit().count(),
                  " ms on ",
                  names_.whose(rank_),
                  "; missing rank(s) ",
                  join(names_(absent(sequence)), ", "),
                  "; see whether they ended, or are busy elsewhere");
    }
    if (late_ranks.due())
      tell_of_late(sequence, signature, late_ranks);
    std::this_thread::sleep_for(pause);
  }
}

// All ranks have read what was compared at an earlier call, so that it goes. A call that is stuck
// publishes its signature again where it is looked at again.
void Agreement::all_have_come(int64_t sequence, const std::string& signature) {
  const Lock lock(mutex_);
  const auto later = published_.lower_bound(sequence);
  for (auto earlier = published_.begin(); earlier != later; earlier = published_.erase(earlier))
    store_->deleteKey(key(*earlier, rank_));
  common_ = sequence;
  if (known_.size() >= kMostKnown)
    known_.clear();
  known_.insert(signature);
}

void Agreement::look_again(int64_t sequence, const std::string& signature) {
  const Lock lock(mutex_);
  publish(sequence, signature);
  for (const int other : indices_below(size_)) {
    if (other == rank_)
      continue;
    if (const auto theirs = published_by(other, sequence))
      compare(sequence, signature, other, *theirs);
  }
}

void Agreement::take_back(int64_t sequence) {
  const Lock lock(mutex_);
  if (published_.erase(sequence) != 0)
    store_->deleteKey(key(sequence, rank_));
}

void Agreement::give_up(int64_t sequence, const char* word) {
  const Lock lock(mutex_);
  try {
    publish(sequence, word);
  } catch (const std::exception&) {
    // Whoever serves the store has gone: nobody reads it.
  }
}

void Agreement::tell_of_late(int64_t sequence,
                             const std::string& operation,
                             const LateRanks& late_ranks) {
  tell(sequence, operation, absent(sequence), late_ranks);
}

void Agreement::say_waiting(std::optional<int64_t> sequence) {
  store_->set(cat("waits/", rank_), sequence ? cat(*sequence) : kNothing);
}

Ints Agreement::not_waiting() {
  return filtered_indices<int>(size_, [&](int other) {
    return other != rank_ &&
           store_->compareSet(cat("waits/", other), kNothing, kNothing) == kNothing;
  });
}

void Agreement::tell_of_not_waiting(int64_t sequence,
                                    const std::string& operation,
                                    const LateRanks& late_ranks) {
  tell(sequence, operation, not_waiting(), late_ranks);
}

// The first of those who have come speaks, so that it is said once.
void Agreement::tell(int64_t sequence,
                     const std::string& operation,
                     const Ints& late,
                     const LateRanks& late_ranks) const {
  Ints came = filtered_indices<int>(size_, [&](int rank) { return !contains(late, rank); });
  if (late.empty() || came.at(0) != rank_)
    return;
  late_ranks.tell(cat("collective #", sequence, " ('", operation, "')", names_.group()),
                  names_(came),
                  names_(late));
}

Ints Agreement::absent(int64_t sequence) {
  if (sequence < common_)
    return {};
  return filtered_indices(
      size_, [&](int other) { return other != rank_ && !published_by(other, sequence); });
}

}  // namespace muster
