// The order in which a rank's operations on shared memory run: one at a time, as they came. A small one runs
// in the thread that asks for it when the other ranks are there already; whatever has to wait goes on in a
// thread of the queue, beside the caller's computation.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/comm/carrier.h"
#include "muster/shm/collectives.h"

namespace muster {

class ShmQueue {
 public:
  using Job = Carrier::Job;

  explicit ShmQueue(shm::Team& team);
  ShmQueue(const ShmQueue&) = delete;
  ShmQueue& operator=(const ShmQueue&) = delete;
  ~ShmQueue();  // gives up what is under way

  // Throws: invalid_argument for an operation that cannot be; what an earlier one has broken the group with.
  void submit(Job job);

  // As Carrier::run.
  bool run(const shm::Request& request, std::chrono::milliseconds timeout);

 private:
  struct Queued {
    Job job;
    Deadline deadline;
    bool begun = false;  // its first request
  };
  void serve();
  void drain(std::unique_lock<std::mutex>& lock);
  void execute(Queued& queued);
  void begin_turn(std::unique_lock<std::mutex>& lock);
  void end_turn(std::unique_lock<std::mutex>& lock);
  void break_unless_refused();  // inside of a handler
  void rethrow_if_broken();
  bool ends_at_once(const Queued& queued) const;

  shm::Team& team_;
  shm::Collectives collectives_;  // of whoever has set running_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  bool running_ = false;  // an operation, in the thread runner_
  std::thread::id runner_;
  bool stop_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace muster
