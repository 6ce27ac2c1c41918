// A rank's calls of a group run one at a time, in the order in which they were started. They run in
// the executor's thread, beside the caller's computation, or in the caller's own where nothing else
// is under way. A failure that breaks the group fails all that comes after it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "muster/base/functions.h"
#include "muster/base/lock.h"
#include "muster/base/no_copy.h"

namespace muster {

class OrderedExecutor : NoCopy {
 public:
  // Runs one call, once, or fails it with what has broken the group before. It never throws.
  using Turn = std::function<void(const std::exception_ptr& broken)>;

  // `give_up` ends what is under way with a failure; any thread may call it.
  explicit OrderedExecutor(Callback give_up);
  ~OrderedExecutor() { leave(); }

  // A turn that is submitted from within another runs when that is over, in its thread. Throws:
  // what has broken the group; failed_precondition after leave().
  void submit(Turn turn);

  // Runs `body` in this thread, unless something is under way: false then. `body` returns the rest
  // of its turn, or nullptr; the rest comes before all that is started meanwhile, in the executor's
  // thread. Throws: what has broken the group; what `body` throws.
  template <class Body>
  bool run_here(Body&& body);

  void break_group(const std::exception_ptr& error);

  // Gives up what is under way, and waits until it is over.
  void leave();

 private:
  void serve();
  void drain(UniqueLock& lock);
  void begin_turn();
  void end_turn();

  const Callback give_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Turn> queue_;
  bool running_ = false;  // a turn, in the thread runner_
  std::thread::id runner_;
  bool stop_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

template <class Body>
bool OrderedExecutor::run_here(Body&& body) {
  UniqueLock lock(mutex_);
  if (broken_)
    std::rethrow_exception(broken_);
  if (running_ || !queue_.empty())
    return false;
  begin_turn();
  lock.unlock();
  Turn rest;
  std::exception_ptr thrown;
  try {
    rest = body();
  } catch (...) {
    thrown = std::current_exception();
  }
  lock.lock();
  if (rest)
    queue_.push_front(std::move(rest));
  end_turn();
  lock.unlock();
  if (thrown)
    std::rethrow_exception(thrown);
  return true;
}

}  // namespace muster
