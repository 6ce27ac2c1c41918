// A c10d::Backend over a Carrier: it checks c10d's calls and turns their tensors into plain memory
// on the host (call.h). Shared memory and MPI have it in common; it does not know which of them
// carries.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <memory>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/host/carrier.h"

namespace muster {

// A HostBackend offers these beside c10d's interface, which has no options for them.
class BlockingCollectives : NoCopy {
 public:
  BlockingCollectives() = default;
  virtual ~BlockingCollectives() = default;

  // Does what allreduce() and the wait() of its Work do, which cost more than a small operation; it
  // does without either where the caller's thread can run the call. `tensor` is dense, contiguous
  // and on the CPU.
  virtual void all_reduce_and_wait(const Tensor& tensor, const c10d::ReduceOp& op) = 0;

  // These are send() and recv() with a time limit other than the backend's.
  virtual WorkPtr send_within(Tensors& tensors, int to, int tag, milliseconds timeout) = 0;
  virtual WorkPtr recv_within(Tensors& tensors, int from, int tag, milliseconds timeout) = 0;

  // A barrier for ranks that leave: one that meets another operation there is told that it left too
  // early.
  virtual void leave_and_wait() = 0;
};

// CPU tensors; others are copied to the host and back. `name` is what getBackendName() says.
BackendPtr make_host_backend(
    std::string name, int rank, int size, milliseconds timeout, std::unique_ptr<Carrier> carrier);

}  // namespace muster
