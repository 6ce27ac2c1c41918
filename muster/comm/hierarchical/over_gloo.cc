// Every call is Gloo's, with tensors that a GlooCall has made fit for it. What is left to do when
// Gloo has ended (results to copy back, a profiler's event to end) hangs on the future of its work;
// a work that has no future gets a wrapper that does it when the work is seen to be over.
#include "muster/comm/hierarchical/over_gloo.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <memory>
#include <mutex>

#include "muster/base/error.h"
#include "muster/base/functions.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/profile.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/host/call.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/shm/mailbox.h"

namespace muster {

namespace {

// Does `end` once when the work has been seen to be over. Gloo tells nobody of the end of messages
// and of some collectives.
class SeenOver : public c10d::Work {
 public:
  SeenOver(WorkPtr work, Callback end)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), end_(std::move(end)) {}

  // A work that has failed does not do `end` here: its wait() throws.
  bool isCompleted() override {
    if (!work_->isCompleted())
      return false;
    if (work_->isSuccess())
      std::call_once(over_, end_);
    return true;
  }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  Tensors result() override { return work_->result(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  FuturePtr getFuture() override { return work_->getFuture(); }
  void abort() override { work_->abort(); }
  bool wait(milliseconds timeout) override {
    const bool ended = work_->wait(timeout);
    std::call_once(over_, end_);
    return ended;
  }

 private:
  const WorkPtr work_;
  const Callback end_;
  std::once_flag over_;
};

// Returns nullptr for a work that has no future.
FuturePtr future_of(const WorkPtr& work) {
  try {
    return work->getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

// A future tells a failure by throwing it.
std::exception_ptr failure_of(c10::ivalue::Future& ended) {
  try {
    ended.value();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// A work that is over when `work` is, and when the call has done what was left to do then.
WorkPtr after(const char* name, const WorkPtr& work, const GlooCall& of_gloo) {
  const GlooCall::Rest& rest = of_gloo.rest();
  if (rest.empty())
    return work;
  const auto future = future_of(work);
  if (!future)
    return c10::make_intrusive<SeenOver>(work, rest);
  HostCall call(name, work->retrieveOpType());
  call.outputs = of_gloo.outputs();
  auto operation = std::make_shared<HostOperation>(std::move(call));
  auto own = c10::make_intrusive<HostWork>(-1, work->getSequencenumber(), operation);
  future->addCallback([operation, rest](c10::ivalue::Future& ended) {
    std::exception_ptr error = failure_of(ended);
    try {
      if (!error)
        rest();
    } catch (...) {
      error = std::current_exception();
    }
    operation->end({.error = error});
  });
  return own;
}

// Returns the bytes of each part. Throws where there is not one a rank, or one of another type.
Int64s bytes_of_parts(const Tensors& parts, int ranks, ScalarType type) {
  if (std::ssize(parts) != ranks) {
    throw invalid_argument(
        "all_to_all: expected ", ranks, " tensors in and out, got ", parts.size());
  }
  Int64s found;
  for (const Tensor& part : parts) {
    if (part.scalar_type() != type || part.layout() != kStrided) {
      throw invalid_argument("all_to_all: expected dense tensors of one type, got ",
                             toString(type),
                             " and ",
                             toString(part.scalar_type()));
    }
    found.push_back(part.numel() * part.element_size());
  }
  return found;
}

// Throws unless all tensors of the lists have the type of the others.
void expect_one_type_in(const char* name, const TensorLists& lists, const Tensors& tensors) {
  if (tensors.empty())
    return;
  for (const Tensors& list : lists) {
    for (const Tensor& tensor : list)
      expect_one_type(name, tensor, tensors[0]);
  }
}

// Throws unless there is one list of inputs with a part like the output for each rank.
void expect_parts(const char* name, const TensorLists& inputs, const Tensors& outputs, int ranks) {
  if (inputs.size() != 1 || outputs.size() != 1 || std::ssize(inputs[0]) != ranks) {
    throw invalid_argument(name,
                           ": expected one list of ",
                           ranks,
                           " tensors, got ",
                           inputs.empty() ? 0 : inputs[0].size());
  }
  for (const Tensor& input : inputs[0]) {
    expect_one_type(name, input, outputs[0]);
    if (input.numel() == outputs[0].numel())
      continue;
    throw invalid_argument(
        name, ": expected tensors of ", outputs[0].numel(), " elements, got ", input.numel());
  }
}

// What the one tensor of a message is.
shm::MessageFrame frame_of_one(const char* name, const Tensors& tensors, int tag) {
  const auto expect = [name](bool right, const std::string& expected, const std::string& got) {
    if (!right)
      throw invalid_argument(name, ": expected ", expected, ", got ", got);
  };
  expect(tensors.size() == 1, "one tensor", cat(tensors.size()));
  expect(tag >= 0, "a tag of at least 0", cat(tag));
  const Tensor& tensor = tensors[0];
  expect_dense(name, tensor);
  expect(tensor.is_cpu(), "a tensor on the CPU", tensor.device().str());
  return frame_of(message_of({.bytes = tensor.nbytes()}, tensor), tag);
}

}  // namespace

// `start`s with a profiler's event around it, from the call to its end. A forked child is refused.
template <class Start>
WorkPtr OverGloo::shown(const char* operation, const Tensors& tensors, const Start& start) const {
  fork_.check(operation);
  if (name_ == "gloo")
    return start();
  const auto end = begin_event(cat(name_, ":", operation), tensors);
  const WorkPtr work = start();
  if (!end)
    return work;
  const auto future = future_of(work);
  if (!future)
    return c10::make_intrusive<SeenOver>(work, end);
  future->addCallback([end](c10::ivalue::Future&) { end(); });
  return work;
}

// Autograd sees nothing of a call: what it copies is no operation of the model's.
template <class Start>
WorkPtr OverGloo::call(const char* operation, const Tensors& tensors, const Start& start) {
  return shown(operation, tensors, [&] {
    const NoGradGuard no_grad;
    GlooCall call(operation);
    const WorkPtr work = start(call);
    return after(operation, work, call);
  });
}

// A time that PyTorch could not count is below 0; Gloo gets one that it can count.
void OverGloo::setTimeout(milliseconds timeout) {
  backend_->setTimeout(countable(timeout));
}

// `method` reduces the tensors' numbers with the operation that Gloo has for `options.reduceOp`.
template <class CallOptions>
WorkPtr OverGloo::reduced(const char* operation,
                          const Tensors& tensors,
                          const CallOptions& options,
                          WorkPtr (Backend::*method)(Tensors&, const CallOptions&)) {
  return call(operation, tensors, [&](GlooCall& call) {
    CallOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(tensors, options.reduceOp);
    Tensors numbers = call.numbers_out(tensors, options.reduceOp);
    return (backend_.get()->*method)(numbers, of_gloo);
  });
}

// `method` moves inputs to lists of outputs, which may be of several layouts: what Gloo has
// gathered is copied to those that are not plain.
template <class CallOptions>
WorkPtr OverGloo::gathered(const char* operation,
                           const TensorLists& outputs,
                           const Tensors& inputs,
                           const CallOptions& options,
                           WorkPtr (Backend::*method)(TensorLists&, Tensors&, const CallOptions&)) {
  return call(operation, inputs, [&](GlooCall& call) {
    expect_one_type_in(operation, outputs, inputs);
    Tensors from = call.in(inputs);
    TensorLists to = mapped(outputs, [&](const Tensors& list) { return call.out(list); });
    return (backend_.get()->*method)(to, from, options);
  });
}

// Gloo sums sparse tensors itself, as they are.
WorkPtr OverGloo::allreduce(Tensors& tensors, const AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse())
    return shown("all_reduce", tensors, [&] { return backend_->allreduce(tensors, options); });
  return reduced("all_reduce", tensors, options, &Backend::allreduce);
}
// The event has a name of its own, as in PyTorch.
WorkPtr OverGloo::allreduce_sparse(Tensors& tensors, const AllreduceOptions& options) {
  return shown(
      "sparse_all_reduce", tensors, [&] { return backend_->allreduce_sparse(tensors, options); });
}
WorkPtr OverGloo::allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& options) {
  return reduced("all_reduce", tensors, options, &Backend::allreduce_coalesced);
}
// On other ranks than the root the tensor's content is undefined afterwards.
WorkPtr OverGloo::reduce(Tensors& tensors, const ReduceOptions& options) {
  return reduced("reduce", tensors, options, &Backend::reduce);
}
// The root's tensor is read, so that a copy of it has its values.
WorkPtr OverGloo::broadcast(Tensors& tensors, const BroadcastOptions& options) {
  return call("broadcast", tensors, [&](GlooCall& call) {
    Tensors moved = call.out(tensors, /*also_read=*/true);
    return backend_->broadcast(moved, options);
  });
}
WorkPtr OverGloo::allgather(TensorLists& outputs,
                            Tensors& inputs,
                            const AllgatherOptions& options) {
  return gathered("all_gather", outputs, inputs, options, &Backend::allgather);
}
WorkPtr OverGloo::allgather_coalesced(TensorLists& outputs,
                                      Tensors& inputs,
                                      const AllgatherOptions& options) {
  return gathered("all_gather", outputs, inputs, options, &Backend::allgather_coalesced);
}
WorkPtr OverGloo::_allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& options) {
  return call("all_gather", {input}, [&](GlooCall& call) {
    expect_one_type("all_gather", output, input);
    Tensor from = call.in(input), to = call.out(output);
    return backend_->_allgather_base(to, from, options);
  });
}
WorkPtr OverGloo::allgather_into_tensor_coalesced(Tensors& outputs,
                                                  Tensors& inputs,
                                                  const AllgatherOptions& options) {
  return call("all_gather", inputs, [&](GlooCall& call) {
    expect_one_type_in("all_gather", {outputs}, inputs);
    Tensors from = call.in(inputs), to = call.out(outputs);
    return backend_->allgather_into_tensor_coalesced(to, from, options);
  });
}

// Gloo's own reduce_scatter is an all_reduce too, but its Work keeps no timeout and does not know
// that it has ended.
WorkPtr OverGloo::reduce_and_cut(GlooCall& call,
                                 const Tensors& inputs,
                                 const Tensor& output,
                                 const ReduceScatterOptions& options) {
  AllreduceOptions of_gloo;
  of_gloo.reduceOp = call.gloo_op({output}, options.reduceOp);
  of_gloo.timeout = options.timeout;
  of_gloo.asyncOp = options.asyncOp;
  Tensors numbers{call.numbers_of(inputs, options.reduceOp)};
  const WorkPtr work = backend_->allreduce(numbers, of_gloo);
  call.copy_part_afterwards(numbers[0], getSize(), getRank(), output);
  return work;
}
// Gloo has no reduce_scatter of lists: all is reduced everywhere, and each rank cuts its part out.
WorkPtr OverGloo::reduce_scatter(Tensors& outputs,
                                 TensorLists& inputs,
                                 const ReduceScatterOptions& options) {
  expect_parts("reduce_scatter", inputs, outputs, getSize());
  return call("reduce_scatter", inputs[0], [&](GlooCall& call) {
    return reduce_and_cut(call, inputs[0], outputs[0], options);
  });
}
// The inputs are the parts of one tensor here.
WorkPtr OverGloo::_reduce_scatter_base(Tensor& output,
                                       Tensor& input,
                                       const ReduceScatterOptions& options) {
  if (input.scalar_type() != output.scalar_type() || input.numel() != output.numel() * getSize()) {
    throw invalid_argument("reduce_scatter: expected an input of ",
                           getSize(),
                           " × ",
                           output.numel(),
                           " ",
                           toString(output.scalar_type()),
                           ", got ",
                           input.numel(),
                           " ",
                           toString(input.scalar_type()));
  }
  return call("reduce_scatter", {input}, [&](GlooCall& call) {
    return reduce_and_cut(call, {input}, output, options);
  });
}
WorkPtr OverGloo::reduce_scatter_tensor_coalesced(Tensors& outputs,
                                                  Tensors& inputs,
                                                  const ReduceScatterOptions& options) {
  return call("reduce_scatter", inputs, [&](GlooCall& call) {
    expect_one_type_in("reduce_scatter", {outputs}, inputs);
    ReduceScatterOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(inputs, options.reduceOp);
    Tensors from, to = call.numbers_out(outputs, options.reduceOp);
    for (const Tensor& input : inputs)
      from.push_back(call.numbers_of({input}, options.reduceOp));
    return backend_->reduce_scatter_tensor_coalesced(to, from, of_gloo);
  });
}
// Only the root has outputs, and only the root of a scatter has inputs.
WorkPtr OverGloo::gather(TensorLists& outputs, Tensors& inputs, const GatherOptions& options) {
  return gathered("gather", outputs, inputs, options, &Backend::gather);
}
WorkPtr OverGloo::scatter(Tensors& outputs, TensorLists& inputs, const ScatterOptions& options) {
  return call("scatter", inputs.empty() ? outputs : inputs[0], [&](GlooCall& call) {
    expect_one_type_in("scatter", inputs, outputs);
    TensorLists from = mapped(inputs, [&](const Tensors& list) { return call.in(list); });
    Tensors to = call.out(outputs);
    return backend_->scatter(to, from, options);
  });
}
// The splits count rows, and a row of bytes is a row of the tensor's.
WorkPtr OverGloo::alltoall_base(Tensor& output,
                                Tensor& input,
                                Int64s& output_splits,
                                Int64s& input_splits,
                                const AllToAllOptions& options) {
  return call("all_to_all", {input}, [&](GlooCall& call) {
    expect_one_type("all_to_all", output, input);
    Tensor from = call.in(input), to = call.out(output);
    return backend_->alltoall_base(to, from, output_splits, input_splits, options);
  });
}

// Gloo has all_to_all for the parts of one tensor alone: the lists go as bytes of one.
WorkPtr OverGloo::alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) {
  const ScalarType type = inputs.empty() ? kFloat : inputs[0].scalar_type();
  auto sent = bytes_of_parts(inputs, getSize(), type);
  auto received = bytes_of_parts(outputs, getSize(), type);
  return call("all_to_all", inputs, [&](GlooCall& call) {
    Tensors flat =
        mapped(inputs, [&](const Tensor& input) { return as_bytes(plain(input)).view(-1); });
    Tensor from = at::cat(flat);
    Tensor to = at::empty({sum_of(received)}, from.options());
    const auto pieces = to.split_with_sizes(received);
    for (const size_t i : indices_of(outputs))
      call.copy_afterwards(pieces[i].view(type), outputs[i]);
    return backend_->alltoall_base(to, from, received, sent, options);
  });
}
// There is nothing to make fit for Gloo in a barrier.
WorkPtr OverGloo::barrier(const BarrierOptions& options) {
  return shown("barrier", {}, [&] { return backend_->barrier(options); });
}
// Its timeout is made countable, as all others are.
void OverGloo::monitoredBarrier(const BarrierOptions& options, bool wait_all_ranks) {
  fork_.check("monitored_barrier");
  BarrierOptions countable_options = options;
  if (options.timeout != c10d::kUnsetTimeout)
    countable_options.timeout = countable(options.timeout);
  backend_->monitoredBarrier(countable_options, wait_all_ranks);
}
// Messages are not counted with the collectives.
WorkPtr OverGloo::send(Tensors& tensors, int to, int tag) {
  return call("send", tensors, [&](GlooCall& call) {
    const auto frame = frame_of_one("send", tensors, tag);
    return messages_.send(call.in(tensors[0]), frame, to);
  });
}
WorkPtr OverGloo::recv(Tensors& tensors, int from, int tag) {
  return call("recv", tensors, [&](GlooCall& call) {
    const auto frame = frame_of_one("recv", tensors, tag);
    return messages_.receive(call.out(tensors[0]), frame, from);
  });
}
WorkPtr OverGloo::recvAnysource(Tensors& tensors, int tag) {
  return call("recvAnySource", tensors, [&](GlooCall& call) {
    const auto frame = frame_of_one("recv", tensors, tag);
    return messages_.receive(call.out(tensors[0]), frame, shm::kAnySource);
  });
}

// A forked child leaves its parent's connections alone.
void OverGloo::abort() {
  if (!fork_.in_child())
    backend_->abort();
}
void OverGloo::shutdown() {
  if (!fork_.in_child())
    backend_->shutdown();
}

}  // namespace muster
