#include "muster/shm/team.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/strings.h"
#include "muster/shm/futex.h"

namespace muster::shm {

namespace {

// Looks, of some 20 µs in all, before this rank gives way to whoever else wants its processor:
// giving way to another program costs more. A rank on the same processor comes first, as it cannot
// come otherwise.
constexpr int kLooksOfItsOwn = 500;
constexpr int kLooksBetweenTimes = 16;  // asking for the time costs as much as some looks
constexpr std::chrono::milliseconds kLongestSleep{
    100};  // then the states are looked at, come what may

constexpr size_t kStage = size_t{256} << 10;
constexpr size_t kLeastStage = size_t{64} << 10;
constexpr size_t kAllStages = size_t{32} << 20;

// Of addresses, not of memory. A process has 2^47, and not for muster alone.
constexpr size_t kAddresses = size_t{32} << 40;
constexpr size_t kPartForATeam = 32;
constexpr size_t kLeastArena = size_t{64} << 20;

}  // namespace

Layout layout_for(int size, size_t machine_bytes, size_t mapped_bytes) {
  if (size > kMaxRanks) {
    throw Error(ErrorCode::invalid_argument,
                cat("shared memory: expected at most ",
                    kMaxRanks,
                    " ranks on a host, got ",
                    size,
                    "; use MUSTER_BACKEND=gloo"));
  }
  const auto ranks = static_cast<size_t>(size);
  const size_t stage = std::clamp(kAllStages / (4 * ranks), kLeastStage, kStage);
  const size_t all_arenas = (kAddresses - std::min(kAddresses, mapped_bytes)) / kPartForATeam;
  const size_t arena = std::max(std::min(machine_bytes, all_arenas / ranks), kLeastArena);
  return {.size = size, .stage_bytes = Layout::pages(stage), .arena_bytes = Layout::pages(arena)};
}

Layout layout_for(int size) {
  const auto machine =
      static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return layout_for(size, machine, SharedMemory::mapped_bytes());
}

Team::Team(const Exchange& exchange,
           int rank,
           int size,
           std::chrono::milliseconds timeout,
           RankNames names)
    : met_(meet(exchange, rank, size, timeout)), rank_(rank), names_(std::move(names)) {
  if (names_.ranks.empty())
    names_ = RankNames::of_all(size);
  Line& mine = line(rank);
  mine.pid = ::getpid();
  mine.pid_namespace = own_pid_namespace();
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  ::sched_getaffinity(0, sizeof(cpus), &cpus);
  static_assert(sizeof(cpus) == sizeof(mine.cpus));
  std::memcpy(mine.cpus, &cpus, sizeof(cpus));
  mine.state = RankState::here;
  const Deadline deadline(timeout);
  try {
    // Until the first step tells the processes' ids, their connections alone tell of their ends.
    const auto on_death = [this] {
      ring_all();
    };
    watch_ = std::make_unique<PeerWatch>(met_, rank, PeerWatch::By::connection, on_death);
    arrive();
    wait_for_all({"process group"}, deadline);
    watch_.reset();
    watch_ = std::make_unique<PeerWatch>(met_, rank, PeerWatch::By::process, on_death);
    mine.needs_connections = watch_->needs_connections() ? 1 : 0;
    count_processors();
    arrive();
    wait_for_all({"process group"}, deadline);
    drop_connections();
  } catch (...) {
    give_up();
    throw;
  }
}

// A child that the process has forked has the team's memory, and is not the rank.
Team::~Team() {
  watch_.reset();
  RankState expected = RankState::here;
  if (line(rank_).pid.load() == ::getpid())
    line(rank_).state.compare_exchange_strong(expected, RankState::left);
  ring_all();
}

// A rank that all see as a process needs none, and a process may have many teams. All have come to
// the step after which they know who needs one.
void Team::drop_connections() {
  if (line(0).needs_connections.load() != 0 || line(rank_).needs_connections.load() != 0)
    return;
  for (int rank = 0; rank < size(); ++rank)
    if (line(rank).needs_connections.load() == 0)
      met_.peers[static_cast<size_t>(rank)].reset();
}

void Team::count_processors() {
  int count = 0;
  for (size_t word = 0; word < std::size(line(0).cpus); ++word) {
    uint64_t any = 0;
    for (int rank = 0; rank < size(); ++rank)
      any |= line(rank).cpus[word];
    count += std::popcount(any);
  }
  crowded_ = size() > std::max(1, count);
}

void Team::ring_all() const {
  for (int rank = 0; rank < size(); ++rank) {
    Line& other = line(rank);
    other.bell.fetch_add(1);
    futex_wake_all(other.bell);
    other.mail_bell.fetch_add(1);
    futex_wake_all(other.mail_bell);
  }
}

std::string Team::here() const {
  return "on " + names_.whose(rank_);
}

std::string to_string(const Step& step) {
  return step.number == 0 ? step.name : cat(step.name, " #", step.number);
}

void Team::check_here(const Step& what) const {
  if (line(rank_).state.load() == RankState::here)
    return;
  throw Error(
      ErrorCode::failed_precondition,
      cat(to_string(what),
          " ",
          here(),
          ": this rank has given up the group, after a failure or abort(); make a new one"));
}

void Team::check_all_here(const Step& what) const {
  check_here(what);
  for (int rank = 0; rank < size(); ++rank) {
    const RankState state = line(rank).state.load();
    if (state == RankState::here)
      continue;
    throw Error(ErrorCode::peer_failed,
                cat(to_string(what),
                    " ",
                    here(),
                    ": ",
                    failure({rank}),
                    "; the first rank that failed has the cause"));
  }
}

void Team::arrive() {
  line(rank_).processor.store(::sched_getcpu(), std::memory_order_relaxed);
  line(rank_).arrived.store(++step_);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_)
      continue;
    Line& other = line(rank);
    if (other.waits_for.load() != static_cast<uint32_t>(rank_) + 1)
      continue;
    other.bell.fetch_add(1);
    futex_wake_all(other.bell);
  }
}

bool Team::all_there(std::chrono::nanoseconds patience, bool gives_way) const {
  const auto start = patience.count() > 0 ? Clock::now() : Clock::time_point();
  int next = 0;
  for (int looks = 1;; ++looks) {
    while (next < size() && line(next).arrived.load(std::memory_order_acquire) >= step_)
      ++next;
    if (next == size())
      return true;
    if (patience.count() == 0)
      return false;
    const bool in_its_way =
        line(next).processor.load(std::memory_order_relaxed) == ::sched_getcpu();
    const bool yields = gives_way && (crowded_ || in_its_way || looks > kLooksOfItsOwn);
    if (yields)
      ::sched_yield();
    relax();
    if ((yields || looks % kLooksBetweenTimes == 0) && Clock::now() - start >= patience)
      return false;
  }
}

std::vector<int> Team::missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank)
    if (line(rank).arrived.load(std::memory_order_acquire) < step_)
      missing.push_back(rank);
  return missing;
}

std::string Team::failure(const std::vector<int>& missing) const {
  const auto those = [&](RankState state) {
    std::vector<int> found;
    for (const int rank : missing)
      if (line(rank).state.load() == state)
        found.push_back(rank);
    return found;
  };
  // Before the dead are looked for: who gave up or left for one's sake has seen that one marked.
  const auto failed = those(RankState::gave_up);
  const auto left = those(RankState::left);
  // What is missing has an end of its own, or waits for another that has: the first cause is told.
  for (int rank = 0; rank < size(); ++rank) {
    if (line(rank).state.load() != RankState::dead)
      continue;
    const bool awaited = std::find(missing.begin(), missing.end(), rank) != missing.end();
    if (!awaited && failed.empty() && left.empty())
      continue;
    note_lost_rank(name(rank));
    return cat("rank ", name(rank), " (process ", line(rank).pid.load(), ") ended");
  }
  if (!left.empty())
    note_lost_rank(name(left[0]));
  if (!left.empty())
    return cat("rank ", name(left[0]), " left the group");
  if (!failed.empty())
    return cat("rank ", name(failed[0]), " failed before, or gave up waiting");
  return "";
}

void Team::wait_for_all(const Step& what, const Deadline& deadline) {
  if (all_there(patience_))
    return;
  LateRanks late_ranks(deadline.left());
  for (int peer = 0; peer < size(); ++peer) {
    while (line(peer).arrived.load(std::memory_order_acquire) < step_) {
      const auto late = missing();
      if (line(rank_).state.load() == RankState::gave_up && !late.empty()) {
        throw Error(ErrorCode::failed_precondition,
                    cat(to_string(what), " ", here(), ": this rank has given up the group"));
      }
      if (const std::string why = failure(late); !why.empty() && !all_there()) {
        give_up();
        throw Error(ErrorCode::peer_failed,
                    cat(to_string(what),
                        " ",
                        here(),
                        ": ",
                        why,
                        "; the first rank that failed has the cause"));
      }
      if (deadline.passed() && !late.empty()) {
        give_up();
        throw Error(ErrorCode::timeout,
                    cat(to_string(what),
                        " ",
                        here(),
                        ": Timed out waiting ",
                        deadline.limit().count(),
                        "ms; missing rank(s) ",
                        join(names_(late), ", "),
                        "; see what they do, or give a longer timeout"));
      }
      if (late_ranks.due())
        tell_of(late, what, late_ranks);
      sleep_for(peer, deadline);
    }
  }
}

// By the first of those who have come, so that it is said once. Where the team is one host's part
// of a group, who is late here may be waiting for a rank elsewhere.
void Team::tell_of(const std::vector<int>& late,
                   const Step& what,
                   const LateRanks& late_ranks) const {
  std::vector<int> came;
  for (int rank = 0; rank < size(); ++rank)
    if (std::find(late.begin(), late.end(), rank) == late.end())
      came.push_back(rank);
  if (late.empty() || came.at(0) != rank_)
    return;
  const char* advice = names_.of_one_host
                           ? "see what the others on this host do, or whether they wait for "
                             "another host themselves"
                           : "see what the others do";
  late_ranks.tell(cat(to_string(what), " ", here()), names_(came), names_(late), advice);
}

void Team::sleep_for(int peer, const Deadline& deadline) {
  Line& mine = line(rank_);
  mine.waits_for.store(static_cast<uint32_t>(peer) + 1);
  const uint32_t seen = mine.bell.load();
  // Whoever arrived, ended or left before the bell was read is seen now; after it, the bell has
  // changed.
  if (line(peer).arrived.load() < step_ && mine.state.load() != RankState::gave_up &&
      failure(missing()).empty()) {
    futex_wait(mine.bell,
               seen,
               std::min<std::chrono::milliseconds>(kLongestSleep,
                                                   deadline.left() + std::chrono::milliseconds(1)));
  }
  mine.waits_for.store(0);
}

void Team::give_up() {
  if (line(rank_).pid.load() != ::getpid())
    return;  // a forked child
  RankState expected = RankState::here;
  line(rank_).state.compare_exchange_strong(expected, RankState::gave_up);
  ring_all();
}

}  // namespace muster::shm
