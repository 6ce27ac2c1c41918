// A rank's calls on shared memory, in order. A small one runs in the thread that asks for it when
// the other ranks are there already; one that has to wait goes on in a thread of the queue, beside
// the caller's computation.
#pragma once

#include <chrono>
#include <exception>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/comm/host/carrier.h"
#include "muster/comm/host/ordered_executor.h"
#include "muster/shm/collectives.h"

namespace muster {

class ShmQueue : NoCopy {
 public:
  explicit ShmQueue(shm::Team& team);

  // Throws: invalid_argument for a call that cannot be; what an earlier one has broken the group
  // with.
  void submit(Carrier::Call call);

  // Does what Carrier::run says.
  bool run(const Request& request, milliseconds timeout);

 private:
  void execute(const Carrier::Call& call, bool begun, const std::exception_ptr& broken);
  void break_unless_refused();  // inside of a handler
  bool ends_at_once(const Carrier::Call& call) const;

  shm::Team& team_;
  shm::Collectives collectives_;  // of the call that runs
  OrderedExecutor executor_;
};

}  // namespace muster
