// A step is a counter in each rank's line. A rank arrives by raising its own; it waits by looking
// at the others', first without sleeping and then on its bell, a futex word. A rank that sleeps
// says for whom, so that one that arrives makes a system call only where somebody sleeps for it.
// The states in the lines tell a rank that waits who will never come.
#include "muster/shm/team.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lost_ranks.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/shm/futex.h"
#include "muster/shm/waiting.h"

namespace muster::shm {

namespace {

// A rank looks for so long before it gives way to whoever else wants its processor: giving way to
// another program costs more. It gives way at once to a rank on the same processor, which cannot
// come otherwise.
constexpr std::chrono::microseconds kTimeOfItsOwn{20};

constexpr size_t kStage = 256 * kKiB;
constexpr size_t kLeastStage = 64 * kKiB;
constexpr size_t kAllStages = 32 * kKiB * kKiB;

// These are addresses and not memory. A process has 2^47, and not for muster alone.
constexpr size_t kAddresses = size_t{32} << 40;
constexpr size_t kPartForATeam = 32;

}  // namespace

Layout layout_for(int size, size_t machine_bytes, size_t mapped_bytes) {
  if (size > kMaxRanks) {
    throw invalid_argument("shared memory: expected at most ",
                           kMaxRanks,
                           " ranks on a host, got ",
                           size,
                           "; use MUSTER_BACKEND=gloo");
  }
  const size_t ranks = size;
  const size_t stage = std::clamp(kAllStages / (4 * ranks), kLeastStage, kStage);
  const size_t all_arenas = (kAddresses - std::min(kAddresses, mapped_bytes)) / kPartForATeam;
  const size_t arena = std::max(std::min(machine_bytes, all_arenas / ranks), kLeastArena);
  return {.size = size, .stage_bytes = Layout::pages(stage), .arena_bytes = Layout::pages(arena)};
}

Layout layout_for(int size) {
  const size_t pages = ::sysconf(_SC_PHYS_PAGES);
  return layout_for(size, pages * ::sysconf(_SC_PAGESIZE), SharedMemory::mapped_bytes());
}

Team::Team(const Exchange& exchange, int rank, int size, milliseconds timeout, RankNames names)
    : met_(meet(exchange, rank, size, timeout)), rank_(rank), names_(std::move(names)) {
  if (names_.ranks.empty())
    names_ = RankNames::of_all(size);
  introduce();
  try {
    meet_as_processes(timeout);
  } catch (...) {
    give_up();
    throw;
  }
}

// Says in this rank's line who it is. The state comes last: a rank that is here is known.
void Team::introduce() {
  Line& mine = line(rank_);
  mine.pid = ::getpid();
  mine.pid_namespace = own_pid_namespace();
  mine.arena_bytes = met_.layout.arena_bytes;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  ::sched_getaffinity(0, sizeof(cpus), &cpus);
  static_assert(sizeof(cpus) == sizeof(mine.cpus));
  std::memcpy(mine.cpus, &cpus, sizeof(cpus));
  mine.state = RankState::here;
}

// Until the first step tells the processes' ids, their connections alone tell of their ends. Then
// the ranks watch each other as processes, and the second step tells who cannot.
void Team::meet_as_processes(milliseconds timeout) {
  const Deadline deadline(timeout);
  const auto on_death = [this] {
    ring_all();
  };
  watch_ = std::make_unique<PeerWatch>(met_, rank_, PeerWatch::By::connection, on_death);
  arrive();
  wait_for_all({"process group"}, deadline);
  met_.agree_on_arenas();
  watch_.reset();
  watch_ = std::make_unique<PeerWatch>(met_, rank_, PeerWatch::By::process, on_death);
  line(rank_).needs_connections = watch_->needs_connections() ? 1 : 0;
  count_processors();
  arrive();
  wait_for_all({"process group"}, deadline);
  drop_connections();
}

// A child that the process has forked has the team's memory, but it is not the rank: it says
// nothing in its name.
Team::~Team() {
  watch_.reset();
  RankState expected = RankState::here;
  if (line(rank_).pid.load() == ::getpid())
    line(rank_).state.compare_exchange_strong(expected, RankState::left);
  ring_all();
}

// A rank that all see as a process needs no connection, and a process may have many teams. All have
// come to the step after which they know who needs one.
void Team::drop_connections() {
  if (line(0).needs_connections.load() != 0 || line(rank_).needs_connections.load() != 0)
    return;
  for (const int rank : indices_below(size())) {
    if (line(rank).needs_connections.load() == 0)
      met_.peers[rank].reset();
  }
}

// Counts those on which any rank may run: ranks that share them are crowded.
void Team::count_processors() {
  int count = 0;
  for (const size_t word : indices_below(std::size(line(0).cpus))) {
    uint64_t any = 0;
    for (const int rank : indices_below(size()))
      any |= line(rank).cpus[word];
    count += std::popcount(any);
  }
  crowded_ = size() > std::max(1, count);
}

void Team::ring_all() const {
  for (const int rank : indices_below(size())) {
    Line& other = line(rank);
    ring(other.bell);
    ring(other.mail_bell);
  }
}

std::string Team::here() const {
  return "on " + names_.whose(rank_);
}

std::string Team::here(const Step& what) const {
  return cat(to_string(what), " ", here());
}

std::string to_string(const Step& step) {
  return step.number == 0 ? step.name : cat(step.name, " #", step.number);
}

void Team::check_here(const Step& what) const {
  if (line(rank_).state.load() == RankState::here)
    return;
  throw failed_precondition(
      here(what), ": this rank has given up the group, after a failure or abort(); make a new one");
}

void Team::check_states(const Step& what, bool (*is_wrong)(RankState)) const {
  for (const int rank : indices_below(size())) {
    if (!is_wrong(line(rank).state.load()))
      continue;
    throw Error(ErrorCode::peer_failed,
                here(what),
                ": ",
                failure({rank}),
                "; the first rank that failed has the cause");
  }
}

void Team::check_all_here(const Step& what) const {
  check_here(what);
  check_states(what, [](RankState state) { return state != RankState::here; });
}

void Team::check_nobody_gave_up(const Step& what) const {
  check_states(what, [](RankState state) { return state == RankState::gave_up; });
}

// The counter is raised before the others' `waits_for` are read, and a rank that is about to sleep
// says so before it reads the counter (sleep_for): one of the two sees the other. All four accesses
// are sequentially consistent for that.
void Team::arrive() {
  line(rank_).processor.store(::sched_getcpu(), std::memory_order_relaxed);
  line(rank_).arrived.store(++step_);
  for_others([&](int rank) {
    Line& other = line(rank);
    if (other.waits_for.load() != rank_ + 1U)
      return;
    ring(other.bell);
  });
}

// The ranks are looked at one after the other: one that has come stays there. `processor` may be
// old; it only decides for whom to give way.
bool Team::all_there(std::chrono::nanoseconds patience, bool gives_way) const {
  int next = 0;
  const auto have_come = [&] {
    while (next < size() && has_come(next))
      ++next;
    return next == size();
  };
  if (have_come())
    return true;
  if (patience.count() == 0)
    return false;
  for (WaitingTime time; !have_come();) {
    const bool in_its_way =
        line(next).processor.load(std::memory_order_relaxed) == ::sched_getcpu();
    const bool yields = gives_way && (crowded_ || in_its_way || time.is_over(kTimeOfItsOwn));
    if (yields)
      ::sched_yield();
    relax();
    if (time.is_over(patience, yields))
      return false;
  }
  return true;
}

Ints Team::missing() const {
  return filtered_indices(size(), [this](int rank) { return !has_come(rank); });
}

Ints Team::in_state(RankState state, const Ints& ranks) const {
  return filtered(ranks, [&](int rank) { return line(rank).state.load() == state; });
}

// Those who gave up or left are looked for before the dead: one that did so for a dead rank's sake
// has seen it marked, and the dead rank is the first cause.
std::string Team::failure(const Ints& missing) const {
  const auto failed = in_state(RankState::gave_up, missing);
  const auto left = in_state(RankState::left, missing);
  for (const int rank : indices_below(size())) {
    if (line(rank).state.load() != RankState::dead)
      continue;
    const bool is_missing = contains(missing, rank);
    if (!is_missing && failed.empty() && left.empty())
      continue;
    note_lost_rank(name(rank));
    return cat("rank ", name(rank), " (process ", line(rank).pid.load(), ") ended");
  }
  if (!left.empty()) {
    note_lost_rank(name(left[0]));
    return cat("rank ", name(left[0]), " left the group");
  }
  if (!failed.empty())
    return cat("rank ", name(failed[0]), " failed before, or gave up waiting");
  return "";
}

void Team::wait_for_all(const Step& what, const Deadline& deadline) {
  if (all_there(patience_))
    return;
  LateRanks late_ranks(deadline.left());
  for (const int peer : indices_below(size())) {
    while (!has_come(peer)) {
      const auto late = missing();
      check_going_on(what, late, deadline);
      if (late_ranks.due())
        tell_of(late, what, late_ranks);
      sleep_for(peer, deadline);
    }
  }
}

// Throws where there is no point in waiting for those who are late. They may have come meanwhile.
void Team::check_going_on(const Step& what, const Ints& late, const Deadline& deadline) {
  if (line(rank_).state.load() == RankState::gave_up && !late.empty()) {
    throw failed_precondition(here(what), ": this rank has given up the group");
  }
  if (const auto why = failure(late); !why.empty() && !all_there()) {
    give_up();
    throw Error(ErrorCode::peer_failed,
                here(what),
                ": ",
                why,
                "; the first rank that failed has the cause");
  }
  if (deadline.passed() && !late.empty()) {
    give_up();
    throw Error(ErrorCode::timeout,
                here(what),
                ": Timed out waiting ",
                deadline.limit().count(),
                "ms; missing rank(s) ",
                join(names_(late), ", "),
                "; see what they do, or give a longer timeout");
  }
}

// The first of those who have come speaks, so that it is said once. Where the team is one host's
// part of a group, a rank that is late here may be waiting for a rank elsewhere.
void Team::tell_of(const Ints& late, const Step& what, const LateRanks& late_ranks) const {
  const auto came = filtered_indices(size(), [&](int rank) { return !contains(late, rank); });
  if (late.empty() || came.at(0) != rank_)
    return;
  const char* advice =
      names_.of_one_host
          ? "see what the others on this host do, or whether they wait for another host themselves"
          : "see what the others do";
  late_ranks.tell(here(what), names_(came), names_(late), advice);
}

// Sleeps until the peer arrives, somebody ends or leaves, or it is time to look again. Whatever
// happened before the bell was read is seen here; whatever happens after it changes the bell, and
// futex_wait() returns at once.
void Team::sleep_for(int peer, const Deadline& deadline) {
  Line& mine = line(rank_);
  mine.waits_for.store(peer + 1);
  const uint32_t seen = mine.bell.load();
  const bool has_not_come = line(peer).arrived.load() < step_;
  if (has_not_come && mine.state.load() != RankState::gave_up && failure(missing()).empty()) {
    const auto patience = std::min(longest_sleep.load(), deadline.left() + milliseconds(1));
    futex_wait(mine.bell, seen, patience);
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
