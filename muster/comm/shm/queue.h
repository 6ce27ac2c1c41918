// A rank's operations on shared memory, in order. A small one runs in the thread that asks for it
// when the other ranks are there already; whatever has to wait goes on in a thread of the queue,
// beside the caller's computation.
#pragma once

#include <chrono>
#include <exception>

#include "muster/base/clock.h"
#include "muster/comm/host/carrier.h"
#include "muster/comm/host/ordered_executor.h"
#include "muster/shm/collectives.h"

namespace muster {

class ShmQueue {
 public:
  explicit ShmQueue(shm::Team& team);
  ShmQueue(const ShmQueue&) = delete;
  ShmQueue& operator=(const ShmQueue&) = delete;

  // Throws: invalid_argument for an operation that cannot be; what an earlier one has broken the
  // group with.
  void submit(Carrier::Operation operation);

  // As Carrier::run.
  bool run(const shm::Request& request, std::chrono::milliseconds timeout);

 private:
  struct Queued {
    Carrier::Operation operation;
    Deadline deadline;
    bool begun = false;  // its first request
  };
  void execute(Queued& queued, const std::exception_ptr& broken);
  void break_unless_refused();  // inside of a handler
  bool ends_at_once(const Queued& queued) const;

  shm::Team& team_;
  shm::Collectives collectives_;  // of the operation that runs
  OrderedExecutor executor_;
};

}  // namespace muster
