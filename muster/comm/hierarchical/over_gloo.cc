#include "muster/comm/hierarchical/over_gloo.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <mutex>
#include <numeric>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/profile.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/host/plain_tensor.h"

namespace muster {

namespace {

using Tensors = OverGloo::Tensors;
using WorkPtr = OverGloo::WorkPtr;

// Does `end` once when the work has been seen to be over: of messages and some collectives Gloo
// tells nobody else.
class SeenOver : public c10d::Work {
 public:
  SeenOver(WorkPtr work, std::function<void()> end)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), end_(std::move(end)) {}

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
  std::vector<at::Tensor> result() override { return work_->result(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  void abort() override { work_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool ended = work_->wait(timeout);
    std::call_once(over_, end_);
    return ended;
  }

 private:
  const WorkPtr work_;
  const std::function<void()> end_;
  std::once_flag over_;
};

// nullptr where this work has none.
c10::intrusive_ptr<c10::ivalue::Future> future_of(const WorkPtr& work) {
  try {
    return work->getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

std::exception_ptr failure_of(c10::ivalue::Future& ended) {
  try {
    ended.value();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// `work`, and after it what the call has left to do.
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

// The bytes of `parts`; throws where they are not one a rank, of one type.
std::vector<int64_t> lengths(const Tensors& parts, int ranks, at::ScalarType type) {
  if (std::ssize(parts) != ranks) {
    throw Error(ErrorCode::invalid_argument,
                cat("all_to_all: expected ", ranks, " tensors in and out, got ", parts.size()));
  }
  std::vector<int64_t> found;
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() != type || part.layout() != at::kStrided) {
      throw Error(ErrorCode::invalid_argument,
                  cat("all_to_all: expected dense tensors of one type, got ",
                      c10::toString(type),
                      " and ",
                      c10::toString(part.scalar_type())));
    }
    found.push_back(static_cast<int64_t>(part.nbytes()));
  }
  return found;
}

std::vector<Tensors> lists_in(GlooCall& call, const std::vector<Tensors>& lists) {
  std::vector<Tensors> found;
  for (const Tensors& list : lists)
    found.push_back(call.in(list));
  return found;
}
std::vector<Tensors> lists_out(GlooCall& call, const std::vector<Tensors>& lists) {
  std::vector<Tensors> found;
  for (const Tensors& list : lists)
    found.push_back(call.out(list));
  return found;
}

// Bytes of two types would fit each other.
void expect_one_type(const char* name, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == b.scalar_type())
    return;
  throw Error(ErrorCode::invalid_argument,
              cat(name,
                  ": expected tensors of one type, got ",
                  c10::toString(a.scalar_type()),
                  " and ",
                  c10::toString(b.scalar_type())));
}
void expect_one_type(const char* name, const std::vector<Tensors>& lists, const Tensors& tensors) {
  for (const Tensors& list : lists)
    for (const at::Tensor& tensor : list)
      if (!tensors.empty())
        expect_one_type(name, tensor, tensors[0]);
}

// One list of inputs, a part like the output for each rank.
void expect_parts(const char* name,
                  const std::vector<Tensors>& inputs,
                  const Tensors& outputs,
                  int ranks) {
  if (inputs.size() != 1 || outputs.size() != 1 || std::ssize(inputs[0]) != ranks) {
    throw Error(ErrorCode::invalid_argument,
                cat(name,
                    ": expected one list of ",
                    ranks,
                    " tensors, got ",
                    inputs.empty() ? 0 : inputs[0].size()));
  }
  for (const at::Tensor& input : inputs[0]) {
    expect_one_type(name, input, outputs[0]);
    if (input.numel() == outputs[0].numel())
      continue;
    throw Error(
        ErrorCode::invalid_argument,
        cat(name, ": expected tensors of ", outputs[0].numel(), " elements, got ", input.numel()));
  }
}

}  // namespace

template <class Start>
WorkPtr OverGloo::shown(const char* operation, const Tensors& tensors, const Start& start) const {
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

template <class Start>
WorkPtr OverGloo::call(const char* operation, const Tensors& tensors, const Start& start) {
  fork_.check(operation);
  return shown(operation, tensors, [&] {
    const at::NoGradGuard no_grad;
    GlooCall call(operation);
    const WorkPtr work = start(call);
    return after(operation, work, call);
  });
}

void OverGloo::setTimeout(std::chrono::milliseconds timeout) {
  ForwardingBackend::setTimeout(countable(timeout));
}

WorkPtr OverGloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].is_sparse()) {
    fork_.check("all_reduce");
    return shown(
        "all_reduce", tensors, [&] { return ForwardingBackend::allreduce(tensors, options); });
  }
  return call("all_reduce", tensors, [&](GlooCall& call) {
    c10d::AllreduceOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(tensors, options.reduceOp);
    Tensors numbers = call.numbers_out(tensors, options.reduceOp);
    return ForwardingBackend::allreduce(numbers, of_gloo);
  });
}
WorkPtr OverGloo::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  fork_.check("sparse_all_reduce");
  return shown("sparse_all_reduce", tensors, [&] {
    return ForwardingBackend::allreduce_sparse(tensors, options);
  });
}
WorkPtr OverGloo::allreduce_coalesced(Tensors& tensors,
                                      const c10d::AllreduceCoalescedOptions& options) {
  return call("all_reduce", tensors, [&](GlooCall& call) {
    c10d::AllreduceCoalescedOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(tensors, options.reduceOp);
    Tensors numbers = call.numbers_out(tensors, options.reduceOp);
    return ForwardingBackend::allreduce_coalesced(numbers, of_gloo);
  });
}
WorkPtr OverGloo::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return call("broadcast", tensors, [&](GlooCall& call) {
    Tensors moved = call.out(tensors, /*also_read=*/true);
    return ForwardingBackend::broadcast(moved, options);
  });
}
WorkPtr OverGloo::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return call("reduce", tensors, [&](GlooCall& call) {
    c10d::ReduceOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(tensors, options.reduceOp);
    Tensors numbers = call.numbers_out(tensors, options.reduceOp);
    return ForwardingBackend::reduce(numbers, of_gloo);
  });
}
WorkPtr OverGloo::allgather(std::vector<Tensors>& outputs,
                            Tensors& inputs,
                            const c10d::AllgatherOptions& options) {
  return call("all_gather", inputs, [&](GlooCall& call) {
    expect_one_type("all_gather", outputs, inputs);
    Tensors from = call.in(inputs);
    std::vector<Tensors> to = lists_out(call, outputs);
    return ForwardingBackend::allgather(to, from, options);
  });
}
WorkPtr OverGloo::allgather_coalesced(std::vector<Tensors>& outputs,
                                      Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  return call("all_gather", inputs, [&](GlooCall& call) {
    expect_one_type("all_gather", outputs, inputs);
    Tensors from = call.in(inputs);
    std::vector<Tensors> to = lists_out(call, outputs);
    return ForwardingBackend::allgather_coalesced(to, from, options);
  });
}
WorkPtr OverGloo::_allgather_base(at::Tensor& output,
                                  at::Tensor& input,
                                  const c10d::AllgatherOptions& options) {
  return call("all_gather", {input}, [&](GlooCall& call) {
    expect_one_type("all_gather", output, input);
    at::Tensor from = call.in(input), to = call.out(output);
    return ForwardingBackend::_allgather_base(to, from, options);
  });
}
WorkPtr OverGloo::allgather_into_tensor_coalesced(Tensors& outputs,
                                                  Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return call("all_gather", inputs, [&](GlooCall& call) {
    expect_one_type("all_gather", {outputs}, inputs);
    Tensors from = call.in(inputs), to = call.out(outputs);
    return ForwardingBackend::allgather_into_tensor_coalesced(to, from, options);
  });
}

// Gloo's own is an all_reduce too, but inside a Work that neither waits for a time nor knows that
// it ended.
WorkPtr OverGloo::reduce_and_cut(GlooCall& call,
                                 const Tensors& inputs,
                                 const at::Tensor& output,
                                 const c10d::ReduceScatterOptions& options) {
  c10d::AllreduceOptions of_all;
  of_all.reduceOp = call.gloo_op({output}, options.reduceOp);
  of_all.timeout = options.timeout;
  of_all.asyncOp = options.asyncOp;
  Tensors numbers{call.numbers_of(inputs, options.reduceOp)};
  const WorkPtr work = ForwardingBackend::allreduce(numbers, of_all);
  call.cut_out(numbers[0], getSize(), getRank(), output);
  return work;
}
WorkPtr OverGloo::reduce_scatter(Tensors& outputs,
                                 std::vector<Tensors>& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  expect_parts("reduce_scatter", inputs, outputs, getSize());
  return call("reduce_scatter", inputs[0], [&](GlooCall& call) {
    return reduce_and_cut(call, inputs[0], outputs[0], options);
  });
}
WorkPtr OverGloo::_reduce_scatter_base(at::Tensor& output,
                                       at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  if (input.scalar_type() != output.scalar_type() || input.numel() != output.numel() * getSize()) {
    throw Error(ErrorCode::invalid_argument,
                cat("reduce_scatter: expected an input of ",
                    getSize(),
                    " × ",
                    output.numel(),
                    " ",
                    c10::toString(output.scalar_type()),
                    ", got ",
                    input.numel(),
                    " ",
                    c10::toString(input.scalar_type())));
  }
  return call("reduce_scatter", {input}, [&](GlooCall& call) {
    return reduce_and_cut(call, {input}, output, options);
  });
}
WorkPtr OverGloo::reduce_scatter_tensor_coalesced(Tensors& outputs,
                                                  Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  return call("reduce_scatter", inputs, [&](GlooCall& call) {
    expect_one_type("reduce_scatter", {outputs}, inputs);
    c10d::ReduceScatterOptions of_gloo = options;
    of_gloo.reduceOp = call.gloo_op(inputs, options.reduceOp);
    Tensors from, to = call.numbers_out(outputs, options.reduceOp);
    for (const at::Tensor& input : inputs)
      from.push_back(call.numbers_of({input}, options.reduceOp));
    return ForwardingBackend::reduce_scatter_tensor_coalesced(to, from, of_gloo);
  });
}
WorkPtr OverGloo::gather(std::vector<Tensors>& outputs,
                         Tensors& inputs,
                         const c10d::GatherOptions& options) {
  return call("gather", inputs, [&](GlooCall& call) {
    expect_one_type("gather", outputs, inputs);
    Tensors from = call.in(inputs);
    std::vector<Tensors> to = lists_out(call, outputs);
    return ForwardingBackend::gather(to, from, options);
  });
}
WorkPtr OverGloo::scatter(Tensors& outputs,
                          std::vector<Tensors>& inputs,
                          const c10d::ScatterOptions& options) {
  return call("scatter", inputs.empty() ? outputs : inputs[0], [&](GlooCall& call) {
    expect_one_type("scatter", inputs, outputs);
    std::vector<Tensors> from = lists_in(call, inputs);
    Tensors to = call.out(outputs);
    return ForwardingBackend::scatter(to, from, options);
  });
}
WorkPtr OverGloo::alltoall_base(at::Tensor& output,
                                at::Tensor& input,
                                std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits,
                                const c10d::AllToAllOptions& options) {
  return call("all_to_all", {input}, [&](GlooCall& call) {
    expect_one_type("all_to_all", output, input);
    at::Tensor from = call.in(input), to = call.out(output);
    return ForwardingBackend::alltoall_base(to, from, output_splits, input_splits, options);
  });
}

// Gloo has it for one tensor's parts alone.
WorkPtr OverGloo::alltoall(Tensors& outputs,
                           Tensors& inputs,
                           const c10d::AllToAllOptions& options) {
  const at::ScalarType type = inputs.empty() ? at::kFloat : inputs[0].scalar_type();
  auto sent = lengths(inputs, getSize(), type);
  const auto received = lengths(outputs, getSize(), type);
  return call("all_to_all", inputs, [&](GlooCall& call) {
    Tensors flat;
    for (const at::Tensor& input : inputs)
      flat.push_back(as_bytes(plain(input)).view(-1));
    at::Tensor out = at::cat(flat);
    at::Tensor in =
        at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})}, out.options());
    const auto pieces = in.split_with_sizes(received);
    for (size_t i = 0; i < outputs.size(); ++i)
      call.written(pieces[i].view(type), outputs[i]);
    auto splits = received;  // which Gloo takes away
    return ForwardingBackend::alltoall_base(in, out, splits, sent, options);
  });
}
WorkPtr OverGloo::barrier(const c10d::BarrierOptions& options) {
  fork_.check("barrier");
  return shown("barrier", {}, [&] { return ForwardingBackend::barrier(options); });
}
void OverGloo::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  fork_.check("monitored_barrier");
  c10d::BarrierOptions countable_options = options;
  if (options.timeout != c10d::kUnsetTimeout)
    countable_options.timeout = countable(options.timeout);
  ForwardingBackend::monitoredBarrier(countable_options, wait_all_ranks);
}
WorkPtr OverGloo::send(Tensors& tensors, int to, int tag) {
  return call("send", tensors, [&](GlooCall& call) {
    Tensors moved = call.in(tensors);
    return ForwardingBackend::send(moved, to, tag);
  });
}
WorkPtr OverGloo::recv(Tensors& tensors, int from, int tag) {
  return call("recv", tensors, [&](GlooCall& call) {
    Tensors moved = call.out(tensors);
    return ForwardingBackend::recv(moved, from, tag);
  });
}
WorkPtr OverGloo::recvAnysource(Tensors& tensors, int tag) {
  return call("recvAnySource", tensors, [&](GlooCall& call) {
    Tensors moved = call.out(tensors);
    return ForwardingBackend::recvAnysource(moved, tag);
  });
}

void OverGloo::abort() {
  if (!fork_.in_child())
    ForwardingBackend::abort();
}
void OverGloo::shutdown() {
  if (!fork_.in_child())
    ForwardingBackend::shutdown();
}

}  // namespace muster
