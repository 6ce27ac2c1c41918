// What carries the operations of a HostBackend between the ranks: shared memory (comm/shm), MPI
// (comm/mpi). It moves and reduces plain memory and knows no tensor.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "muster/shm/collectives.h"

namespace muster {

// How an operation has ended.
struct Ended {
  int source = -1;  // the rank that a message was received from
  std::exception_ptr error{};
  bool memory_in_use = false;  // still, by what carries it: it lets go of `done` when it is not
};

class Carrier {
 public:
  using Done = std::function<void(Ended)>;  // once, in any thread

  // One operation of the caller's: one collective, or several, one after the other.
  struct Operation {
    std::vector<shm::Request> requests;
    std::chrono::milliseconds timeout{0};
    bool asynchronous =
        true;  // false: the caller has nothing to do meanwhile, and may run it itself
    Done done;
  };

  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;  // without leave(): gives up what is under way

  // The memory stays the caller's until `done`. Throws: invalid_argument for an operation that
  // cannot be; what an earlier one has broken the group with.
  virtual void submit(Operation operation) = 0;
  // As one that the caller waits for, in its own thread, until it is over; false where that is no
  // way, or something else is under way. Throws: what `done` would be told too.
  virtual bool run(const shm::Request& /*request*/, std::chrono::milliseconds /*timeout*/) {
    return false;
  }
  virtual void send(
      int to, int tag, shm::Part data, std::chrono::milliseconds timeout, Done done) = 0;
  // `from` may be shm::kAnySource.
  virtual void receive(
      int from, int tag, shm::Part data, std::chrono::milliseconds timeout, Done done) = 0;

  // Messages may have tags below 0, which are no caller's.
  virtual bool has_own_tags() const { return false; }

  // Memory of which operations need no copy; nullptr where there is no such memory.
  virtual bool allocates() const { return false; }
  virtual std::shared_ptr<std::byte> allocate(size_t /*bytes*/) { return nullptr; }

  // Ends what is under way with a failure. From any thread.
  virtual void give_up() = 0;
  // In good order, when all ranks have ended what they did. Nothing is asked of it afterwards but
  // allocate().
  virtual void leave() = 0;
};

}  // namespace muster
