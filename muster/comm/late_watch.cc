#include "muster/comm/late_watch.h"

#include <algorithm>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/rank_processes.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookEvery{250};

// Until then a launcher has had the time to end this rank too, and the other rank's last operations are over.
constexpr std::chrono::seconds kUntilLost{3};

// "rank 1 has ended", of the ranks of the operation's group; or "".
std::string lost_member(const Work::State& state) {
  for (const RankProcess& process : ended_processes()) {
    const auto& members = state.names->ranks;
    if (std::find(members.begin(), members.end(), process.rank) != members.end())
      return cat("rank ", process.rank, " (process ", process.pid, ") has ended");
  }
  return "";
}

// The two calls, where another rank makes a different one under this number; or "". Warns of ranks that have
// made none. A store that has gone is no reason for this thread to speak.
std::string compare_with_others(const Work::State& state, const LateRanks& late_ranks) {
  try {
    state.agreement->look_again(state.sequence, state.signature);
    state.agreement->tell_of_late(state.sequence, state.signature, late_ranks);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) return error.what();
  } catch (const std::exception&) {
  }
  return "";
}

}  // namespace

LateWatch::~LateWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void LateWatch::add(const std::shared_ptr<Work::State>& state) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({.state = state, .late_ranks = LateRanks(state->timeout)});
  start_thread();
}

void LateWatch::add_of_gpu(std::shared_ptr<Work::State> state) {
  const LateRanks late_ranks(state->timeout);
  const std::lock_guard lock(mutex_);
  of_gpu_.emplace(WatchedOfGpu{.state = std::move(state), .late_ranks = late_ranks});
  start_thread();
}

void LateWatch::start_thread() {
  if (!thread_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this] { run(); });
  } else if (watched_.size() + (of_gpu_ ? 1 : 0) == 1) {
    changed_.notify_one();
  }
}

void LateWatch::run() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !watched_.empty() || of_gpu_; });
    changed_.wait_for(lock, kLookEvery, [&] { return stop_; });
    if (stop_) return;
    look_at_host(lock);
    if (of_gpu_) look_at_gpu(lock);
  }
}

void LateWatch::look_at_host(Lock& lock) {
  for (auto next = watched_.begin(); next != watched_.end();) {
    const auto state = next->state.lock();
    if (!state || state->waited || state->work->isCompleted()) {
      next = watched_.erase(next);
      continue;
    }
    if (next->late_ranks.due()) {
      const LateRanks late_ranks = next->late_ranks;
      lock.unlock();                            // new ones go to the end, and nobody else takes any away
      compare_with_others(*state, late_ranks);  // a difference is thrown where the operation is waited for
      lock.lock();
    }
    ++next;
  }
}

void LateWatch::look_at_gpu(Lock& lock) {
  if (of_gpu_->state->work->isCompleted()) {
    of_gpu_.reset();
    return;
  }
  look_for_lost();
  if (!of_gpu_->late_ranks.due()) return;
  const WatchedOfGpu watched = *of_gpu_;
  lock.unlock();
  const std::string difference = compare_with_others(*watched.state, watched.late_ranks);
  lock.lock();
  if (!difference.empty() && lost_) std::exchange(lost_, {})(difference);
}

void LateWatch::look_for_lost() {
  if (!lost_) return;
  const std::string lost = lost_member(*of_gpu_->state);
  if (lost.empty()) return;
  if (!of_gpu_->lost_since) of_gpu_->lost_since = Clock::now();
  if (Clock::now() - *of_gpu_->lost_since < kUntilLost) return;
  std::exchange(lost_, {})(cat(of_gpu_->state->name(), ": ", lost));
}

}  // namespace muster
