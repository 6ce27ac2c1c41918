// The lock guards the queue and who runs; it is never held while a turn runs. Whoever runs, the
// executor's thread or a caller, is told by running_ and runner_, and all others only append.
#include "muster/comm/host/ordered_executor.h"

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/lock.h"

namespace muster {

OrderedExecutor::OrderedExecutor(Callback give_up) : give_up_(std::move(give_up)) {
  const BlockedSignals blocked;  // in the thread, for good
  thread_ = std::thread([this] { serve(); });
}

void OrderedExecutor::submit(Turn turn) {
  UniqueLock lock(mutex_);
  if (broken_)
    std::rethrow_exception(broken_);
  if (stop_)
    throw failed_precondition("the process group was shut down");
  queue_.push_back(std::move(turn));
  if (running_ && runner_ == std::this_thread::get_id())
    return drain(lock);
  changed_.notify_one();
}

void OrderedExecutor::break_group(const std::exception_ptr& error) {
  const Lock lock(mutex_);
  if (!broken_)
    broken_ = error;
}

// give_up_ runs under the lock: nothing can begin between it and the end of the thread.
void OrderedExecutor::leave() {
  {
    const Lock lock(mutex_);
    if (stop_)
      return;
    stop_ = true;
    if (running_ || !queue_.empty())
      give_up_();
  }
  changed_.notify_all();
  thread_.join();
}

void OrderedExecutor::begin_turn() {
  running_ = true;
  runner_ = std::this_thread::get_id();
}

// The caller's turn in its own thread is over; what has been queued meanwhile goes on in the
// executor's.
void OrderedExecutor::end_turn() {
  running_ = false;
  if (stop_ || !queue_.empty())
    changed_.notify_one();
}

// Runs what is queued, until nothing is. The caller has the lock, and has it again afterwards.
void OrderedExecutor::drain(UniqueLock& lock) {
  while (!queue_.empty()) {
    Turn next = std::move(queue_.front());
    queue_.pop_front();
    const std::exception_ptr broken = broken_;
    lock.unlock();
    next(broken);
    next = nullptr;  // before the lock is taken
    lock.lock();
  }
}

// The thread: it waits while another runs, and ends when nothing is queued after leave().
void OrderedExecutor::serve() {
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !running_ && (stop_ || !queue_.empty()); });
    if (queue_.empty())
      return;
    begin_turn();
    drain(lock);
    running_ = false;
  }
}

}  // namespace muster
