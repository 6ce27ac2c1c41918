// Turns a call's tensors into what muster::shm works on: plain memory on the host. Inside of
// comm/host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/functions.h"
#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/record.h"
#include "muster/shm/collectives.h"

namespace muster {

using shm::Part;
using shm::Request;

// Throws: invalid_argument for an operation that shared memory does not have (PREMUL_SUM).
shm::Op shm_op(const c10d::ReduceOp& op);

// Returns other for a type that can be moved and not reduced.
shm::Type shm_type(const Tensor& tensor);

// `tensor` is plain (plain_tensor.h).
Part memory_of(const Tensor& tensor);

// The part as a message of the tensor's values, whose type its other side compares.
Part message_of(Part part, const Tensor& tensor);

// One call being put together.
class HostCall {
 public:
  struct Copy {
    Tensor from, to;
  };

  HostCall(const char* name, OpType type) : name(name), type(type) {}

  // The memory of a tensor that is read, or written (and read too, where `also_read`). For a tensor
  // that lies elsewhere, or is not plain, it is a plain copy's. Throws: invalid_argument for a
  // tensor that is not dense.
  Part in(const Tensor& tensor);
  Part out(const Tensor& tensor, bool also_read = false);

  // Cuts `whole` into equal parts, one a rank.
  std::vector<Part> split(const Part& whole, int ranks) const;

  // The rows of `tensor`, whose memory is `whole`, that go to or come from each rank: as many as
  // `splits` says, or equally many.
  std::vector<Part> rows(const Tensor& tensor,
                         const Part& whole,
                         const Int64s& splits,
                         int ranks) const;

  // Throws: invalid_argument.
  void expect(bool right, const std::string& expected, const std::string& got) const;
  void expect_like(const Tensor& tensor, const Tensor& model) const;  // in type and length
  void expect_as_many(const Tensors& outputs, const Tensors& inputs) const;
  const Tensor& one(const Tensors& tensors) const;

  // A request has the type and shape of a part, for all ranks to compare.
  Request request(shm::Kind kind, const Tensor& part) const;

  // Begins its event for a profiler that looks on: "<backend>:all_reduce".
  void show_event(const std::string& backend);

  const char* name;
  OpType type;
  Tensors held;              // until the call is over
  Tensors outputs;           // as the caller gave them
  std::vector<Copy> copies;  // to be made when it is over
  // The caller's, where copies go to a GPU: they come behind what uses its memory now.
  std::optional<c10::Stream> stream;
  Callback end_event{};  // a profiler's, where there is one
  CallRecord record{};   // in the rank's activity file

  // The tensors that go in, or else those that come out.
  const Tensors& shown() const { return held.empty() ? outputs : held; }
  const Tensor* first_tensor() const { return shown().empty() ? nullptr : shown().data(); }
};

}  // namespace muster
