// From tensors to what muster::shm works on: plain memory on the host. Inside of comm/host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/comm/call/record.h"
#include "muster/shm/collectives.h"

namespace muster {

// Throws: invalid_argument for what shared memory has not (PREMUL_SUM).
shm::Op shm_op(const c10d::ReduceOp& op);

// other: a type that can be moved, not reduced.
shm::Type shm_type(const at::Tensor& tensor);

shm::Part memory_of(const at::Tensor& tensor);  // of one that is plain

// One operation being put together.
class HostCall {
 public:
  struct Copy {
    at::Tensor from, to;
  };

  HostCall(const char* name, c10d::OpType type) : name(name), type(type) {}

  // The memory of a tensor that is read, or written (and read too, where `also_read`). Of one that
  // lies elsewhere, or is not plain (plain_tensor.h), a copy that is. Throws: invalid_argument for
  // one that is not dense.
  shm::Part in(const at::Tensor& tensor);
  shm::Part out(const at::Tensor& tensor, bool also_read = false);

  // `whole` as equal parts, one a rank.
  std::vector<shm::Part> split(const shm::Part& whole, int ranks) const;

  // The rows of `tensor`, whose memory is `whole`, that go to or come from each rank: as many as
  // `splits` says, or equally many.
  std::vector<shm::Part> rows(const at::Tensor& tensor,
                              const shm::Part& whole,
                              const std::vector<int64_t>& splits,
                              int ranks) const;

  // Throws: invalid_argument.
  void expect(bool right, const std::string& expected, const std::string& got) const;
  void expect_like(const at::Tensor& tensor, const at::Tensor& model) const;  // in type and length
  const at::Tensor& one(const std::vector<at::Tensor>& tensors) const;

  // With the type and shape of a part, for all ranks to compare.
  shm::Request request(shm::Kind kind, const at::Tensor& part) const;

  // Begins its event for a profiler that looks on: "<backend>:all_reduce".
  void show_event(const std::string& backend);

  const char* name;
  c10d::OpType type;
  std::vector<at::Tensor> held;     // until the operation is over
  std::vector<at::Tensor> outputs;  // as the caller gave them
  std::vector<Copy> copies;         // to be made when it is over
  std::optional<c10::Stream>
      stream;  // the caller's, where they go to a GPU: behind what uses its memory now
  const at::Tensor* first_tensor()
      const {  // what goes in, or else comes out; nullptr where neither does
    const auto& known = held.empty() ? outputs : held;
    return known.empty() ? nullptr : known.data();
  }
  std::function<void()> end_event{};  // of a profiler's, where there is one
  CallRecord record{};                // in the rank's activity file

 private:
  void check(const at::Tensor& tensor) const;
};

}  // namespace muster
