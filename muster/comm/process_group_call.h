// One call of a ProcessGroup being put together: it checks its tensors, makes them contiguous, then
// starts the operation. For the sources of ProcessGroup.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/group_state.h"
#include "muster/comm/work.h"
#include "muster/comm/work_state.h"

namespace muster {

const char* to_string(ReduceOp op);

class ProcessGroupCall {
 public:
  using Limit = std::optional<milliseconds>;

  // With the time limit of the value that is called. Throws: failed_precondition after shutdown().
  ProcessGroupCall(const char* operation, const ProcessGroup& group)
      : ProcessGroupCall(operation, group.state_.get(), group.timeout_) {}
  // `limit` is the call's own time limit; without one it has the group's. Throws: as the other.
  ProcessGroupCall(const char* operation, ProcessGroup::State* state, Limit limit = {});

  // A tensor that the backend reads or writes: checked, plain (host/plain_tensor.h). An `output` is
  // copied back.
  Tensor tensor(const Tensor& given, bool output);
  // Autograd learns nothing of what the call makes of its input: the program is told.
  void ends_graph_of(const Tensor& input) const;
  // A tensor that is moved is treated alike, and becomes bytes where the backend does not know its
  // type, and for one that is reduced, whose complex numbers become real ones. Throws:
  // invalid_argument for an operation that NCCL or complex numbers do not have.
  Tensor moved(const Tensor& given, bool output);
  Tensor numbers(const Tensor& given, bool output, ReduceOp op);
  // The input as a backend may read it while it writes the output: a copy where both share memory,
  // unless the smaller one lies at this rank's place in the larger, which MPI alone does not
  // take. Both are plain.
  Tensor apart(const Tensor& input, const Tensor& output);
  // A message's tensor is on the host where Gloo sends it. (Gloo's collectives copy CUDA tensors
  // themselves.)
  Tensor host_tensor(const Tensor& given, bool output);
  // A call without tensors runs on the group's own device.
  void without_tensors() { on_device_ = state_->can.on_gpus; }

  // Throws: invalid_argument.
  void check_root(int root) const;
  // `size` equal parts of `whole` must have the size of `part`.
  void check_parts(const Tensor& whole,
                   const Tensor& part,
                   const char* whole_name,
                   const char* part_name) const;

  // Options with the time limit. A backend of muster's own is also told whether the caller waits.
  template <class Options>
  Options options(Caller caller) const {
    Options options;
    options.asyncOp = !state_->backend || caller == Caller::goes_on;
    if (const auto limit = backend_limit())
      options.timeout = *limit;
    return options;
  }

  // All ranks must have this text in common, beside the operation. It is put together only where
  // they compare it.
  template <class Text>
  void in_common(Text&& text) {
    if (state_->agreement)
      in_common_ = text();
  }

  // Starts the operation on the one backend there is, else on c10d's group, which chooses by the
  // tensors' device. That choice costs as much as a small operation.
  template <class Operation>
  Work start(const Operation& operation) {
    return start_with_all([&] { return of_what_takes_it(operation); });
  }
  // Starts a call without tensors.
  Work start_barrier(Caller caller);
  // Starts a message between two ranks, which have nothing to agree on.
  template <class Operation>
  Work start_between(int peer, int tag, const Operation& operation) {
    return start_with(peer, tag, [&] { return of_what_takes_it(operation); });
  }

 private:
  using Start = c10::function_ref<WorkPtr()>;

  bool is_for_nccl(const Tensor& tensor) const;
  Tensor as_known(const Tensor& plain) const;
  template <class Operation>
  WorkPtr of_what_takes_it(const Operation& operation) {
    return state_->backend != nullptr ? operation(*state_->backend) : operation(*state_->group);
  }
  milliseconds limit() const;
  void choose_waiting(Work::State& work) const;
  bool is_captured() const;
  Limit backend_limit() const;
  Work start_with_all(Start start);
  Work start_with(int peer, int tag, Start start);
  void check(const Tensor& tensor);
  void agree(Work::State& work);
  void watch(const WorkStatePtr& work) const;
  void check_not_given_up(const Work::State& work) const;
  WorkStatePtr new_work() const;
  CallRecord new_record(const Work::State& work) const;
  Work launch(WorkStatePtr work, Start start);

  const char* operation_;
  ProcessGroup::State* state_;
  const Limit limit_;
  const Gate::Pass pass_;
  std::string in_common_;
  bool on_device_ = false;  // the GPU does it
  bool is_barrier_ = false;
  const Tensor* first_ = nullptr;  // the caller's first tensor, while the call is made
  bool has_copied_ = false;        // a tensor, for the call alone
  std::vector<Work::State::Copy> copies_;
};

}  // namespace muster
