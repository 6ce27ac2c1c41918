#include "muster/comm/shm_queue.h"

#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"

namespace muster {

namespace {

// What a caller that goes on waits itself for the others, at most, before the queue's thread does. Waking
// that costs more.
constexpr std::chrono::microseconds kPatience{20};
constexpr std::chrono::microseconds kPatienceWhenCrowded{100};  // the others first need this processor
// At each step, before it sleeps: who has nothing else to do; and the queue's thread, beside which the caller
// may be computing on the same processor.
constexpr std::chrono::microseconds kCallersPatience{1'000};
constexpr std::chrono::microseconds kQueuesPatience{50};

}  // namespace

ShmQueue::ShmQueue(shm::Team& team) : team_(team), collectives_(team) {
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { serve(); });
}

ShmQueue::~ShmQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (running_ || !queue_.empty()) team_.give_up();
  }
  changed_.notify_all();
  thread_.join();
}

void ShmQueue::submit(Job job) {
  Queued queued{.job = std::move(job), .deadline = Deadline(job.timeout)};
  std::unique_lock lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  if (running_ && runner_ == std::this_thread::get_id()) {  // from what an operation's end has called
    queue_.push_back(std::move(queued));
    return drain(lock);
  }
  if (running_ || !queue_.empty()) {
    queue_.push_back(std::move(queued));
    changed_.notify_one();
    return;
  }
  begin_turn(lock);
  std::exception_ptr refused;
  bool ended = false;
  try {
    collectives_.begin(queued.job.requests.at(0));
    queued.begun = true;
    ended = ends_at_once(queued);
  } catch (...) {
    refused = std::current_exception();
    break_unless_refused();
  }
  if (ended) execute(queued);
  lock.lock();
  if (!ended && !refused) queue_.push_front(std::move(queued));
  end_turn(lock);
  if (refused) std::rethrow_exception(refused);
}

bool ShmQueue::run(const shm::Request& request, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  if (running_ || !queue_.empty()) return false;
  begin_turn(lock);
  std::exception_ptr error;
  try {
    team_.set_patience(kCallersPatience);
    collectives_.begin(request);
    collectives_.finish(request, Deadline(timeout));
  } catch (...) {
    error = std::current_exception();
    break_unless_refused();
  }
  lock.lock();
  end_turn(lock);
  if (error) std::rethrow_exception(error);
  return true;
}

void ShmQueue::begin_turn(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  runner_ = std::this_thread::get_id();
  lock.unlock();
}

void ShmQueue::end_turn(std::unique_lock<std::mutex>& lock) {
  running_ = false;
  if (stop_ || !queue_.empty()) changed_.notify_one();
  lock.unlock();
}

bool ShmQueue::ends_at_once(const Queued& queued) const {
  if (!queued.job.asynchronous) return true;
  if (queued.job.requests.size() > 1 || !collectives_.is_small(queued.job.requests[0])) return false;
  // The caller has something to compute, which must not wait for whoever else wants this processor.
  const bool crowded = team_.crowded();
  return team_.all_there(crowded ? kPatienceWhenCrowded : kPatience, /*gives_way=*/crowded);
}

void ShmQueue::execute(Queued& queued) {
  std::exception_ptr error;
  try {
    if (!queued.begun) rethrow_if_broken();
    team_.set_patience(queued.job.asynchronous ? kQueuesPatience : kCallersPatience);
    for (const shm::Request& request : queued.job.requests) {
      if (!std::exchange(queued.begun, false)) collectives_.begin(request);
      collectives_.finish(request, queued.deadline);
    }
  } catch (...) {
    error = std::current_exception();
    break_unless_refused();
  }
  queued.job.done({.error = error});
}

// A wrong call leaves the team as good as it was. After anything else, memory that could not be had too, this
// rank may have taken fewer steps than the others: whatever came next would be paired with something else.
void ShmQueue::break_unless_refused() {
  try {
    throw;
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::invalid_argument) return;
  } catch (...) {
  }
  team_.give_up();
  const std::lock_guard lock(mutex_);
  if (!broken_) broken_ = std::current_exception();
}

void ShmQueue::rethrow_if_broken() {
  const std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
}

// What is queued, in order, by the thread that runs operations already.
void ShmQueue::drain(std::unique_lock<std::mutex>& lock) {
  while (!queue_.empty()) {
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    execute(next);
    next = {.job = {}, .deadline = Deadline(std::chrono::nanoseconds(0))};  // before the lock is taken
    lock.lock();
  }
}

void ShmQueue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !running_ && (stop_ || !queue_.empty()); });
    if (queue_.empty()) return;
    running_ = true;
    runner_ = std::this_thread::get_id();
    drain(lock);
    running_ = false;
  }
}

}  // namespace muster
