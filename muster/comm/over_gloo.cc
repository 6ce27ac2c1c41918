#include "muster/comm/over_gloo.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/profile.h"
#include "muster/comm/timeouts.h"

namespace muster {

namespace {

using Tensors = OverGloo::Tensors;
using WorkPtr = OverGloo::WorkPtr;

// Does `end` when its caller has waited: of messages and some collectives Gloo tells nobody else that they
// are over.
class WaitedFor : public c10d::Work {
 public:
  WaitedFor(WorkPtr work, std::function<void()> end)
      : Work(-1, work->retrieveOpType()), work_(std::move(work)), end_(std::move(end)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return work_->getFuture(); }
  void abort() override { work_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool ended = work_->wait(timeout);
    if (const auto end = std::exchange(end_, {})) end();
    return ended;
  }

 private:
  const WorkPtr work_;
  std::function<void()> end_;
};

std::string title(const char* operation) {
  return cat("muster:", operation);
}

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
  if (!profiler_looks_on()) return start();
  const auto end = begin_event(title(operation), tensors);
  const WorkPtr work = start();
  const auto future = future_of(work);
  if (!future) return c10::make_intrusive<WaitedFor>(work, end);
  future->addCallback([end](c10::ivalue::Future&) { end(); });
  return work;
}

template <class Start>
WorkPtr shown_message(const char* operation, const Tensors& tensors, Start&& start) {
  if (!profiler_looks_on()) return start();
  auto end = begin_event(title(operation), tensors);
  return c10::make_intrusive<WaitedFor>(start(), std::move(end));
}

// `work`, and after it `finish`, which makes `outputs` of what came.
template <class Finish>
WorkPtr followed(const WorkPtr& work, Tensors outputs, Finish finish) {
  const auto last = [outputs = std::move(outputs), finish = std::move(finish)] {
    const at::NoGradGuard no_grad;
    finish(outputs);
    return c10::IValue(outputs);
  };
  const auto future = future_of(work);
  if (!future) return c10::make_intrusive<WaitedFor>(work, [last] { last(); });
  return c10d::Work::create_from_future(future->then(
      [last](c10::ivalue::Future& ended) {
        ended.value();  // throws what it failed of
        return last();
      },
      c10::ListType::create(c10::TensorType::get())));
}

// The sum, of which it is made, may be more than the type has.
bool is_mean_of_halves(const Tensors& tensors, const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::AVG && tensors.size() == 1 &&
         (tensors[0].scalar_type() == at::kHalf || tensors[0].scalar_type() == at::kBFloat16);
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

int64_t sum(const std::vector<int64_t>& numbers) {
  int64_t all = 0;
  for (const int64_t number : numbers) all += number;
  return all;
}

}  // namespace

WorkPtr OverGloo::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return shown("all_reduce", tensors, [&] {
    if (!is_mean_of_halves(tensors, options.reduceOp)) return ForwardingBackend::allreduce(tensors, options);
    Tensors wide = {tensors[0].to(at::kFloat)};
    const WorkPtr work = ForwardingBackend::allreduce(wide, options);
    return followed(work, tensors, [wide](const Tensors& outputs) { outputs[0].copy_(wide[0]); });
  });
}
WorkPtr OverGloo::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return shown("sparse_all_reduce", tensors,
               [&] { return ForwardingBackend::allreduce_sparse(tensors, options); });
}
WorkPtr OverGloo::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return shown("all_reduce", tensors,
               [&] { return ForwardingBackend::allreduce_coalesced(tensors, options); });
}
WorkPtr OverGloo::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return shown("broadcast", tensors, [&] { return ForwardingBackend::broadcast(tensors, options); });
}
WorkPtr OverGloo::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return shown("reduce", tensors, [&] { return ForwardingBackend::reduce(tensors, options); });
}
WorkPtr OverGloo::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                            const c10d::AllgatherOptions& options) {
  return shown("all_gather", inputs, [&] { return ForwardingBackend::allgather(outputs, inputs, options); });
}
WorkPtr OverGloo::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  return shown("all_gather", inputs,
               [&] { return ForwardingBackend::allgather_coalesced(outputs, inputs, options); });
}
WorkPtr OverGloo::_allgather_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::AllgatherOptions& options) {
  return shown("all_gather", {input},
               [&] { return ForwardingBackend::_allgather_base(output, input, options); });
}
WorkPtr OverGloo::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ReduceScatterOptions& options) {
  return shown("reduce_scatter", inputs.empty() ? outputs : inputs[0],
               [&] { return ForwardingBackend::reduce_scatter(outputs, inputs, options); });
}
WorkPtr OverGloo::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::ReduceScatterOptions& options) {
  return shown("reduce_scatter", {input}, [&] {
    if (!is_mean_of_halves({input}, options.reduceOp))
      return ForwardingBackend::_reduce_scatter_base(output, input, options);
    at::Tensor wide = input.to(at::kFloat);
    at::Tensor mine = at::empty(output.sizes(), wide.options());
    const WorkPtr work = ForwardingBackend::_reduce_scatter_base(mine, wide, options);
    return followed(work, {output}, [mine, wide](const Tensors& outputs) { outputs[0].copy_(mine); });
  });
}
WorkPtr OverGloo::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return shown("gather", inputs, [&] { return ForwardingBackend::gather(outputs, inputs, options); });
}
WorkPtr OverGloo::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                          const c10d::ScatterOptions& options) {
  return shown("scatter", inputs.empty() ? outputs : inputs[0],
               [&] { return ForwardingBackend::scatter(outputs, inputs, options); });
}
WorkPtr OverGloo::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  return shown("all_to_all", {input}, [&] {
    return ForwardingBackend::alltoall_base(output, input, output_splits, input_splits, options);
  });
}

// Gloo has it for one tensor's parts alone.
WorkPtr OverGloo::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const at::ScalarType type = inputs.empty() ? at::kFloat : inputs[0].scalar_type();
  auto sent = lengths(inputs, getSize(), type);
  const auto received = lengths(outputs, getSize(), type);
  return shown("all_to_all", inputs, [&] {
    Tensors flat;
    for (const at::Tensor& input : inputs) flat.push_back(input.detach().reshape({-1}));
    at::Tensor out = at::cat(flat);
    at::Tensor in = at::empty({sum(received)}, out.options());
    auto splits = received;  // which Gloo takes away
    const WorkPtr work = ForwardingBackend::alltoall_base(in, out, splits, sent, options);
    return followed(work, outputs, [in, received](const Tensors& parts) {
      const auto pieces = in.split_with_sizes(received);
      for (size_t i = 0; i < parts.size(); ++i) parts[i].copy_(pieces[i].view(parts[i].sizes()));
    });
  });
}
WorkPtr OverGloo::barrier(const c10d::BarrierOptions& options) {
  return shown("barrier", {}, [&] { return ForwardingBackend::barrier(options); });
}
void OverGloo::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  c10d::BarrierOptions countable_options = options;
  if (options.timeout != c10d::kUnsetTimeout) countable_options.timeout = countable(options.timeout);
  ForwardingBackend::monitoredBarrier(countable_options, wait_all_ranks);
}
WorkPtr OverGloo::send(Tensors& tensors, int to, int tag) {
  return shown_message("send", tensors, [&] { return ForwardingBackend::send(tensors, to, tag); });
}
WorkPtr OverGloo::recv(Tensors& tensors, int from, int tag) {
  return shown_message("recv", tensors, [&] { return ForwardingBackend::recv(tensors, from, tag); });
}
WorkPtr OverGloo::recvAnysource(Tensors& tensors, int tag) {
  return shown_message("recvAnySource", tensors,
                       [&] { return ForwardingBackend::recvAnysource(tensors, tag); });
}

void OverGloo::abort() {
  if (!fork_.in_child()) ForwardingBackend::abort();
}
void OverGloo::shutdown() {
  if (!fork_.in_child()) ForwardingBackend::shutdown();
}

}  // namespace muster
