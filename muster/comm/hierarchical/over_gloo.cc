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

namespace muster {

namespace {

using Tensors = OverGloo::Tensors;
using WorkPtr = OverGloo::WorkPtr;

// Does `end` once when the work has been seen to be over: of messages and some collectives Gloo tells nobody
// else.
class SeenOver : public c10d::Work {
 public:
  SeenOver(WorkPtr work, std::function<void()> end)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), end_(std::move(end)) {}

  bool isCompleted() override {
    if (!work_->isCompleted()) return false;
    if (work_->isSuccess()) std::call_once(over_, end_);
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

// `start`, and where a profiler looks on its event, until Gloo has ended it.
template <class Start>
WorkPtr shown(const char* operation, const Tensors& tensors, Start&& start) {
  const auto end = begin_event(cat("muster:", operation), tensors);
  const WorkPtr work = start();
  if (!end) return work;
  const auto future = future_of(work);
  if (!future) return c10::make_intrusive<SeenOver>(work, end);
  future->addCallback([end](c10::ivalue::Future&) { end(); });
  return work;
}

std::exception_ptr failure_of(c10::ivalue::Future& ended) {
  try {
    ended.value();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// `work`, and after it `finish`, which makes `outputs` of what came.
template <class Finish>
WorkPtr followed(const char* name, const WorkPtr& work, const Tensors& outputs, Finish finish) {
  const auto future = future_of(work);
  if (!future) {
    return c10::make_intrusive<SeenOver>(work, [outputs, finish] {
      const at::NoGradGuard no_grad;
      finish(outputs);
    });
  }
  HostCall call(name, work->retrieveOpType());
  call.outputs = outputs;
  auto operation = std::make_shared<HostOperation>(std::move(call));
  auto own = c10::make_intrusive<HostWork>(-1, work->getSequencenumber(), operation);
  future->addCallback([operation, finish](c10::ivalue::Future& ended) {
    std::exception_ptr error = failure_of(ended);
    try {
      const at::NoGradGuard no_grad;
      if (!error) finish(operation->call().outputs);
    } catch (...) {
      error = std::current_exception();
    }
    operation->end({.error = error});
  });
  return own;
}

// The lengths of `parts`; throws where they are not one a rank, of one type.
std::vector<int64_t> lengths(const Tensors& parts, int ranks, at::ScalarType type) {
  if (std::ssize(parts) != ranks) {
    throw Error(ErrorCode::invalid_argument,
                cat("all_to_all: expected ", ranks, " tensors in and out, got ", parts.size()));
  }
  std::vector<int64_t> found;
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() != type || part.layout() != at::kStrided) {
      throw Error(ErrorCode::invalid_argument,
                  cat("all_to_all: expected dense tensors of one type, got ", c10::toString(type), " and ",
                      c10::toString(part.scalar_type())));
    }
    found.push_back(part.numel());
  }
  return found;
}

}  // namespace

void OverGloo::setTimeout(std::chrono::milliseconds timeout) {
  ForwardingBackend::setTimeout(countable(timeout));
}

bool OverGloo::is_mean_of_halves(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::AVG &&
         (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
}

WorkPtr OverGloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  fork_.check("all_reduce");
  return shown("all_reduce", tensors, [&] {
    if (tensors.size() != 1 || !is_mean_of_halves(tensors[0], options.reduceOp))
      return ForwardingBackend::allreduce(tensors, options);
    Tensors wide = {tensors[0].to(at::kFloat)};
    const WorkPtr work = ForwardingBackend::allreduce(wide, options);
    return followed("all_reduce", work, tensors,
                    [wide](const Tensors& outputs) { outputs[0].copy_(wide[0]); });
  });
}
WorkPtr OverGloo::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  fork_.check("sparse_all_reduce");
  return shown("sparse_all_reduce", tensors,
               [&] { return ForwardingBackend::allreduce_sparse(tensors, options); });
}
WorkPtr OverGloo::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  fork_.check("all_reduce");
  return shown("all_reduce", tensors,
               [&] { return ForwardingBackend::allreduce_coalesced(tensors, options); });
}
WorkPtr OverGloo::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  fork_.check("broadcast");
  return shown("broadcast", tensors, [&] { return ForwardingBackend::broadcast(tensors, options); });
}
WorkPtr OverGloo::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  fork_.check("reduce");
  return shown("reduce", tensors, [&] { return ForwardingBackend::reduce(tensors, options); });
}
WorkPtr OverGloo::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& options) {
  fork_.check("all_gather");
  return shown("all_gather", inputs, [&] { return ForwardingBackend::allgather(outputs, inputs, options); });
}
WorkPtr OverGloo::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  fork_.check("all_gather");
  return shown("all_gather", inputs,
               [&] { return ForwardingBackend::allgather_coalesced(outputs, inputs, options); });
}
WorkPtr OverGloo::_allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& options) {
  fork_.check("all_gather");
  return shown("all_gather", {input},
               [&] { return ForwardingBackend::_allgather_base(output, input, options); });
}
WorkPtr OverGloo::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  fork_.check("reduce_scatter");
  return shown("reduce_scatter", inputs.empty() ? outputs : inputs[0],
               [&] { return ForwardingBackend::reduce_scatter(outputs, inputs, options); });
}
// Gloo's own is an all_reduce too, but inside a Work that neither waits for a time nor knows that it ended.
WorkPtr OverGloo::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  if (input.scalar_type() != output.scalar_type() || input.numel() != output.numel() * getSize()) {
    throw Error(ErrorCode::invalid_argument,
                cat("reduce_scatter: expected an input of ", getSize(), " × ", output.numel(), " ",
                    c10::toString(output.scalar_type()), ", got ", input.numel(), " ",
                    c10::toString(input.scalar_type())));
  }
  fork_.check("reduce_scatter");
  return shown("reduce_scatter", {input}, [&] {
    c10d::AllreduceOptions of_all;
    of_all.reduceOp = options.reduceOp;
    of_all.timeout = options.timeout;
    of_all.asyncOp = options.asyncOp;
    const bool wide = is_mean_of_halves(input, options.reduceOp);
    Tensors whole{input.detach().to(wide ? at::kFloat : input.scalar_type(), /*non_blocking=*/false,
                                    /*copy=*/true, at::MemoryFormat::Contiguous)};
    const WorkPtr work = ForwardingBackend::allreduce(whole, of_all);
    const at::Tensor mine = whole[0].view({getSize(), output.numel()})[getRank()];
    return followed("reduce_scatter", work, {output},
                    [mine](const Tensors& outputs) { outputs[0].copy_(mine.view(outputs[0].sizes())); });
  });
}
WorkPtr OverGloo::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  fork_.check("gather");
  return shown("gather", inputs, [&] { return ForwardingBackend::gather(outputs, inputs, options); });
}
WorkPtr OverGloo::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                          const c10d::ScatterOptions& options) {
  fork_.check("scatter");
  return shown("scatter", inputs.empty() ? outputs : inputs[0],
               [&] { return ForwardingBackend::scatter(outputs, inputs, options); });
}
WorkPtr OverGloo::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  fork_.check("all_to_all");
  return shown("all_to_all", {input}, [&] {
    return ForwardingBackend::alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Gloo has it for one tensor's parts alone.
WorkPtr OverGloo::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const at::ScalarType type = inputs.empty() ? at::kFloat : inputs[0].scalar_type();
  auto sent = lengths(inputs, getSize(), type);
  const auto received = lengths(outputs, getSize(), type);
  fork_.check("all_to_all");
  return shown("all_to_all", inputs, [&] {
    Tensors flat;
    for (const at::Tensor& input : inputs) flat.push_back(input.detach().reshape({-1}));
    at::Tensor out = at::cat(flat);
    at::Tensor in = at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})}, out.options());
    auto splits = received;  // which Gloo takes away
    const WorkPtr work = ForwardingBackend::alltoall_base(in, out, splits, sent, options);
    return followed("all_to_all", work, outputs, [in, received](const Tensors& parts) {
      const auto pieces = in.split_with_sizes(received);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].copy_(pieces[i].view(parts[i].sizes()));
    });
  });
}
WorkPtr OverGloo::barrier(const c10d::BarrierOptions& options) {
  fork_.check("barrier");
  return shown("barrier", {}, [&] { return ForwardingBackend::barrier(options); });
}
void OverGloo::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  fork_.check("monitored_barrier");
  c10d::BarrierOptions countable_options = options;
  if (options.timeout != c10d::kUnsetTimeout) countable_options.timeout = countable(options.timeout);
  ForwardingBackend::monitoredBarrier(countable_options, wait_all_ranks);
}
WorkPtr OverGloo::send(Tensors& tensors, int to, int tag) {
  fork_.check("send");
  return shown("send", tensors, [&] { return ForwardingBackend::send(tensors, to, tag); });
}
WorkPtr OverGloo::recv(Tensors& tensors, int from, int tag) {
  fork_.check("recv");
  return shown("recv", tensors, [&] { return ForwardingBackend::recv(tensors, from, tag); });
}
WorkPtr OverGloo::recvAnysource(Tensors& tensors, int tag) {
  fork_.check("recvAnySource");
  return shown("recvAnySource", tensors, [&] { return ForwardingBackend::recvAnysource(tensors, tag); });
}

void OverGloo::abort() {
  if (!fork_.in_child()) ForwardingBackend::abort();
}
void OverGloo::shutdown() {
  if (!fork_.in_child()) ForwardingBackend::shutdown();
}

}  // namespace muster
