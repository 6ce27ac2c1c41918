// Messages between two ranks over Gloo, whose receiver compares what has come with what it expects.
// Gloo alone takes a shorter message or one of another type for the receiver's, and a longer one
// ends the process. For over_gloo.cc; it knows no layout of tensors.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <memory>

#include "muster/base/rank_names.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/shm/message_frame.h"

namespace muster {

class GlooMessages {
 public:
  // Errors call the ranks by `names`, or without any by their own numbers.
  GlooMessages(const BackendPtr& gloo, RankNames names);

  // `memory` is a plain tensor on the host, of a type that Gloo knows; the frame tells of the
  // caller's tensor. Its work's wait() ends when the receiver has asked for the message, whatever
  // it expects.
  WorkPtr send(const Tensor& memory, const shm::MessageFrame& frame, int to);

  // From a rank, or from shm::kAnySource. Its work's wait() throws invalid_argument, showing both
  // sides, for a message that is not as `wanted`. Throws: failed_precondition once one of those has
  // left a receive behind that Gloo cannot take back.
  WorkPtr receive(const Tensor& memory, const shm::MessageFrame& wanted, int from);

 private:
  struct Received;
  class WaitedOnce;
  class Sending;
  class Receiving;
  struct Shared;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace muster
