#include "muster/comm/late_watch.h"

#include <utility>

#include "muster/base/blocked_signals.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kLookEvery{250};

// What the comparison finds is thrown where the operation is waited for; a store that has gone is no reason
// for this thread to speak.
void tell_if_late(const std::shared_ptr<Work::State>& state, const LateRanks& late_ranks) {
  try {
    state->agreement->look_again(state->sequence, state->signature);
    state->agreement->tell_of_late(state->sequence, state->signature, late_ranks);
  } catch (const std::exception&) {
    return;
  }
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
  if (!thread_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    thread_ = std::thread([this] { run(); });
  } else if (watched_.size() == 1) {
    changed_.notify_one();
  }
}

void LateWatch::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !watched_.empty(); });
    changed_.wait_for(lock, kLookEvery, [&] { return stop_; });
    if (stop_) return;
    for (auto next = watched_.begin(); next != watched_.end();) {
      const auto state = next->state.lock();
      if (!state || state->waited || state->work->isCompleted()) {
        next = watched_.erase(next);
        continue;
      }
      if (next->late_ranks.due()) {
        const LateRanks late_ranks = next->late_ranks;
        lock.unlock();  // new ones go to the end, and nobody else takes any away
        tell_if_late(state, late_ranks);
        lock.lock();
      }
      ++next;
    }
  }
}

}  // namespace muster
