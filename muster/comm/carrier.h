// What carries the operations of a HostBackend between the ranks: shared memory (shm_backend.cc), MPI
// (muster/mpi). It moves and reduces plain memory and knows no tensor.
#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "muster/shm/collectives.h"

namespace muster {

class Carrier {
 public:
  // Collectives that are one operation of the caller's, one after the other.
  struct Job {
    std::vector<shm::Request> requests;
    std::chrono::milliseconds timeout{0};
    bool asynchronous = true;  // false: the caller has nothing to do meanwhile, and may run it itself
    std::function<void(std::exception_ptr)> done;  // once, in any thread
  };
  // A message has been sent, or received from `source`, or has failed. Once, in any thread.
  using MessageDone = std::function<void(int source, std::exception_ptr error)>;

  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;  // without leave(): gives up what is under way

  // The memory stays the caller's until `done`. Throws: invalid_argument for an operation that cannot be;
  // what an earlier one has broken the group with.
  virtual void submit(Job job) = 0;
  virtual void send(int to, int tag, shm::Part data, std::chrono::milliseconds timeout, MessageDone done) = 0;
  // `from` may be shm::kAnySource.
  virtual void receive(int from, int tag, shm::Part data, std::chrono::milliseconds timeout,
                       MessageDone done) = 0;

  // Memory of which operations need no copy; nullptr where there is no such memory.
  virtual bool allocates() const { return false; }
  virtual std::shared_ptr<std::byte> allocate(size_t /*bytes*/) { return nullptr; }

  // Ends what is under way with a failure. From any thread.
  virtual void give_up() = 0;
  // In good order, when all ranks have ended what they did. Nothing is asked of it afterwards but allocate().
  virtual void leave() = 0;
};

}  // namespace muster
