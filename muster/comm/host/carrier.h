// A carrier takes the calls of a HostBackend between the ranks: shared memory (comm/shm), MPI
// (comm/mpi). It moves and reduces plain memory and knows no tensor.
//
// A call has these forms on its way. ProcessGroupCall and HostCall (call.h) have its tensors;
// Carrier::Call is the same in plain memory; HostOperation and HostWork (operation.h) are what its
// caller keeps of it until it is over.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/shm/collectives.h"

namespace muster {

using shm::Part;
using shm::Request;

// The end of a call.
struct Ended {
  int source = -1;  // the rank that a message was received from
  std::exception_ptr error{};
  bool memory_in_use = false;  // by the carrier, which lets go of `done` when it is not any more
};

class Carrier : NoCopy {
 public:
  using Done = std::function<void(Ended)>;  // once, in any thread

  // One collective, or several, one after the other.
  struct Call {
    std::vector<Request> requests;
    Deadline deadline;
    bool asynchronous = true;  // false: the caller only waits, and may run it itself
    Done done;
  };

  Carrier() = default;
  virtual ~Carrier() = default;  // without leave(): gives up what is under way

  // The memory stays the caller's until `done`. Throws: invalid_argument for a call that cannot be;
  // what an earlier one has broken the group with.
  virtual void submit(Call call) = 0;
  // Runs the request in the caller's thread until it is over; false where the carrier has no way to
  // do that, or something else is under way. Throws: what `done` would be told too.
  virtual bool run(const Request& /*request*/, milliseconds /*timeout*/) { return false; }
  virtual void send(int to, int tag, Part data, milliseconds timeout, Done done) = 0;
  // `from` may be shm::kAnySource.
  virtual void receive(int from, int tag, Part data, milliseconds timeout, Done done) = 0;

  // Whether messages may have tags below 0, which are no caller's.
  virtual bool has_own_tags() const { return false; }

  // Memory that needs no copy; nullptr where there is no such memory.
  virtual bool allocates() const { return false; }
  virtual std::shared_ptr<std::byte> allocate(size_t /*bytes*/) { return nullptr; }

  // Ends what is under way with a failure. From any thread.
  virtual void give_up() = 0;
  // Leaves in good order, when all ranks have ended what they did. Afterwards nothing is asked of
  // it but allocate().
  virtual void leave() = 0;
};

}  // namespace muster
