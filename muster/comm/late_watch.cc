// The thread looks a few times a second. A host's operation is late when its time is half over,
// say; LateRanks knows. A GPU's operation can also be lost: a rank of it has ended or calls
// something else, its time is over, or NCCL has failed. Then nothing on this rank will ever see its
// end.
#include "muster/comm/late_watch.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>

#include "muster/base/blocked_signals.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/comm/call/rank_processes.h"
#include "muster/comm/nccl/gpu_turn.h"
#include "muster/comm/nccl/nccl.h"

namespace muster {

namespace {

constexpr milliseconds kLookEvery{250};

// A rank counts as lost after this time: a launcher has had the time to end this rank too, and the
// lost rank's last operations are over.
constexpr std::chrono::seconds kUntilLost{3};

// An operation that nobody waits for is shown to the others after this time: another rank may make
// another call in its place, and wait for this one's.
constexpr std::chrono::seconds kUntilShown{1};

// A rank whose operation takes longer tells the others that it waits.
constexpr std::chrono::seconds kUntilSaid{2};

// "rank 1 has ended" where a rank of the operation's group has; else "".
std::string lost_member(const Work::State& state) {
  const auto& members = state.names->ranks;
  for (const RankProcess& process : ended_processes()) {
    if (contains(members, process.rank))
      return cat("rank ", process.rank, " (process ", process.pid, ") has ended");
  }
  return "";
}

// What NCCL says of an operation that has failed; else "". LibTorch does not count such a one as
// under way, though whatever waits for it on the GPU waits for ever.
std::string failure_of(c10d::Work& work) {
  try {
    if (const auto failure = work.exception())
      std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// A GPU that has failed says so wherever it is asked, and the rank's own next call tells of it.
bool is_over(c10d::Work& work) {
  try {
    return work.isCompleted();
  } catch (const std::exception&) {
    return true;
  }
}

bool is_unanswered(const Work::State& state) {
  return state.deadline.limit() - state.deadline.left() >= kUntilShown;
}

// Whoever waits for the operation throws what the comparison finds. A store that has gone is no
// reason for this thread to speak.
void tell_if_late(const Work::State& state, const LateRanks& late_ranks) {
  try {
    state.agreement->look_again(state.sequence, state.signature);
    state.agreement->tell_of_late(state.sequence, state.signature, late_ranks);
  } catch (const std::exception&) {
    return;
  }
}

void show(const Work::State& state) {
  try {
    state.agreement->show(state.sequence, state.signature);
  } catch (const std::exception&) {
    return;
  }
}

// Nobody ends such an operation before all have come to it.
bool is_met_by_all(std::string_view operation) {
  return is_one_of(
      operation, "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier");
}

// What has failed stays there for the others.
void take_back(const Work::State& state) {
  try {
    const bool is_over = state.work->isCompleted() && !state.work->exception();
    if (is_over && is_met_by_all(state.operation))
      state.agreement->take_back(state.sequence);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace

LateWatch::~LateWatch() {
  {
    const Lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable())
    thread_.join();
}

void LateWatch::add(const WorkStatePtr& state) {
  const Lock lock(mutex_);
  watched_.push_back({.state = state, .late_ranks = LateRanks(state->deadline.limit())});
  start_thread();
}

void LateWatch::add_of_gpu(WorkStatePtr state) {
  const Lock lock(mutex_);
  newest_of_gpu_ = std::move(state);
  start_thread();
}

void LateWatch::start_thread() {
  if (!thread_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this] { run(); });
  } else if (watched_.size() + (newest_of_gpu_ ? 1 : 0) == 1) {
    changed_.notify_one();
  }
}

void LateWatch::run() {
  begin_gpu_thread(device_);
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !watched_.empty() || newest_of_gpu_; });
    changed_.wait_for(lock, kLookEvery, [&] { return stop_; });
    if (stop_)
      return;
    look_at_host(lock);
    if (newest_of_gpu_ && !look_at_gpu(lock))
      return;
  }
}

// The lock is free while it tells: new ones go to the end, and nobody else takes any away.
void LateWatch::look_at_host(UniqueLock& lock) {
  for (auto next = watched_.begin(); next != watched_.end();) {
    const auto state = next->state.lock();
    if (!state || state->waited || state->work->isCompleted()) {
      if (state && next->is_shown) {
        lock.unlock();
        take_back(*state);
        lock.lock();
      }
      next = watched_.erase(next);
      continue;
    }
    const bool is_late = next->late_ranks.due();
    const bool is_to_show = !next->is_shown && is_unanswered(*state);
    if (is_late || is_to_show) {
      next->is_shown = true;
      const LateRanks late_ranks = next->late_ranks;
      lock.unlock();
      is_late ? tell_if_late(*state, late_ranks) : show(*state);
      lock.lock();
    }
    ++next;
  }
}

// The lock is free while it asks the GPU and the store: nobody's next operation waits for that.
// False where nothing can be asked any more, as the process ends.
bool LateWatch::look_at_gpu(UniqueLock& lock) {
  const GpuTurn turn;
  if (!turn) {
    keep_for_ever(std::move(newest_of_gpu_));
    keep_for_ever(std::move(of_gpu_));
    return false;
  }
  const WorkStatePtr newest = newest_of_gpu_;
  lock.unlock();
  const bool over = is_over_on_gpu(newest);
  lock.lock();
  if (over && newest_of_gpu_ == newest)
    newest_of_gpu_.reset();
  return true;
}

// Runs in the thread, without the lock.
bool LateWatch::is_over_on_gpu(const WorkStatePtr& newest) {
  if (!of_gpu_ || of_gpu_->state != newest) {
    forget_of_gpu();
    of_gpu_.emplace(
        WatchedOfGpu{.state = newest, .late_ranks = LateRanks(newest->deadline.limit())});
  }
  look_for_lost();
  if (is_over(*newest->work)) {
    look_for_failure();
    forget_of_gpu();
    return true;
  }
  if (newest->agreement)
    compare_on_gpu();
  look_at_deadline();
  return false;
}

// Whoever waits on the host throws it.
void LateWatch::look_for_failure() {
  const Work::State& state = *of_gpu_->state;
  const std::string failure = failure_of(*state.work);
  if (!failure.empty() && !state.keeps_host_waiting())
    give_up(cat(state.name(), ": NCCL has failed: ", split(failure, '\n')[0]));
}

// Whoever waits on the host throws a timeout.
void LateWatch::look_at_deadline() {
  const Work::State& state = *of_gpu_->state;
  if (!state.deadline.passed() || state.keeps_host_waiting())
    return;
  std::string why;
  try {
    why = cat("; ", state.why_late());
  } catch (const std::exception&) {
    // The store has gone, and nobody knows who is missing.
  }
  give_up(cat(state.name(), ": timed out after ", format_duration(state.deadline.limit()), why));
}

void LateWatch::forget_of_gpu() {
  try {
    if (of_gpu_ && of_gpu_->says_waiting)
      of_gpu_->state->agreement->say_waiting({});
  } catch (const std::exception&) {
    // The store has gone, and whoever would have read it.
  }
  of_gpu_.reset();
}

void LateWatch::look_for_lost() {
  const auto lost = lost_member(*of_gpu_->state);
  if (lost.empty())
    return;
  if (!of_gpu_->lost_since)
    of_gpu_->lost_since = Clock::now();
  if (Clock::now() - *of_gpu_->lost_since >= kUntilLost)
    give_up(cat(of_gpu_->state->name(), ": ", lost));
}

void LateWatch::compare_on_gpu() {
  const Work::State& state = *of_gpu_->state;
  const auto until_said = std::min<milliseconds>(kUntilSaid, state.deadline.limit() / 16);
  try {
    if (!of_gpu_->says_waiting && Clock::now() - of_gpu_->began > until_said) {
      state.agreement->say_waiting(state.sequence);
      of_gpu_->says_waiting = true;
    }
    if (state.keeps_host_waiting() || !of_gpu_->late_ranks.due())
      return;  // whoever waits on the host says so itself
    const bool is_compared = !state.signature.empty();
    if (is_compared)
      state.agreement->look_again(state.sequence, state.signature);
    state.agreement->tell_of_not_waiting(
        state.sequence, is_compared ? state.signature : state.operation, of_gpu_->late_ranks);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument)
      give_up(error.what());
  } catch (const std::exception&) {
    return;  // the store has gone
  }
}

void LateWatch::give_up(const std::string& what) {
  if (lost_)
    std::exchange(lost_, {})(what);
}

}  // namespace muster
