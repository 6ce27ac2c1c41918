#include "muster/comm/process_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/group_state.h"
#include "muster/comm/host/choice.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/comm/process_group_call.h"
#include "muster/comm/torch_compat.h"
#include "muster/comm/work_state.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
  }
  throw Error(ErrorCode::internal, "reduce op: unknown value");
}

bool is_plain_on_host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && is_plain(tensor);
}

// The parts of a tensor, one a rank, as views along the flattened first dimension.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, int parts) {
  const at::Tensor flat = whole.view({parts, whole.numel() / parts});
  std::vector<at::Tensor> views;
  views.reserve(static_cast<size_t>(parts));
  for (int i = 0; i < parts; ++i)
    views.push_back(flat[i]);
  return views;
}

int64_t row_count(const std::vector<int64_t>& splits) {
  return std::accumulate(splits.begin(), splits.end(), int64_t{0});
}

}  // namespace

const char* to_string(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};
  return kNames[static_cast<int>(op)];
}

int ProcessGroup::rank() const {
  return state_->rank;
}
int ProcessGroup::size() const {
  return state_->size;
}
c10::Device ProcessGroup::device() const {
  return state_->options.device;
}
const std::string& ProcessGroup::backend() const {
  return state_->options.backend;
}
Traffic ProcessGroup::traffic() const {
  return {.calls = state_->calls, .bytes = state_->bytes};
}
void ProcessGroup::add_traffic(const Traffic& more) {
  state_->calls += more.calls;
  state_->bytes += more.bytes;
}
ProcessGroup ProcessGroup::with_timeout(std::chrono::milliseconds timeout) const {
  if (timeout <= std::chrono::milliseconds(0)) {
    throw Error(ErrorCode::invalid_argument,
                cat("with_timeout: expected more than 0 ms, got ",
                    timeout.count(),
                    " (rank ",
                    state_->name(),
                    "); the group's own limit is ",
                    state_->options.timeout.count(),
                    " ms"));
  }
  ProcessGroup limited = *this;
  limited.timeout_ = countable(timeout);
  return limited;
}
const c10::intrusive_ptr<c10d::Store>& ProcessGroup::store() const {
  return state_->store;
}
int ProcessGroup::job_rank(int rank) const {
  return (*state_->names)[rank];
}
int ProcessGroup::job_rank() const {
  return state_->name();
}
int ProcessGroup::parent_rank(int rank) const {
  return state_->parent_ranks.at(static_cast<size_t>(rank));
}

const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
  if (!state_->group)
    throw Error(ErrorCode::failed_precondition, "process group: used after shutdown()");
  return state_->group;
}

void ProcessGroup::all_reduce(at::Tensor tensor, ReduceOp op) {
  const Gate::Pass pass = state_->gate.enter();
  if (!pass || !state_->blocking || timeout_ || !is_plain_on_host(tensor))
    return all_reduce_async(std::move(tensor), op, Caller::waits).wait();
  const int64_t sequence = state_->sequence++;
  state_->count(tensor);
  const Span span("all_reduce", Category::communication);
  try {
    RECORD_USER_SCOPE("all_reduce");  // for LibTorch's profiler
    state_->blocking->all_reduce_and_wait(tensor, to_c10d(op));
  } catch (...) {
    rethrow_translated(Work::State{.operation = "all_reduce",
                                   .sequence = sequence,
                                   .rank = state_->rank,
                                   .names = state_->names}
                           .name());
  }
}

Work ProcessGroup::all_reduce_async(at::Tensor tensor, ReduceOp op, Caller caller) {
  ProcessGroupCall call("all_reduce", state_.get(), timeout_);
  std::vector<at::Tensor> tensors{call.numbers(tensor, true, op)};
  state_->count(tensor);
  call.in_common([&] { return cat(to_string(op), " ", describe(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::AllreduceOptions>(caller);
    options.reduceOp = to_c10d(op);
    return group.allreduce(tensors, options);
  });
}

Work ProcessGroup::reduce_async(at::Tensor tensor, int root, ReduceOp op, Caller caller) {
  ProcessGroupCall call("reduce", state_.get(), timeout_);
  call.check_root(root);
  std::vector<at::Tensor> tensors{call.numbers(tensor, true, op)};
  state_->count(tensor);
  call.in_common([&] { return cat(to_string(op), " to ", root, " ", describe(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::ReduceOptions>(caller);
    options.reduceOp = to_c10d(op);
    options.rootRank = root;
    return group.reduce(tensors, options);
  });
}

Work ProcessGroup::broadcast_async(at::Tensor tensor, int root, Caller caller) {
  ProcessGroupCall call("broadcast", state_.get(), timeout_);
  call.check_root(root);
  std::vector<at::Tensor> tensors{call.moved(tensor, true)};
  if (state_->rank == root)
    state_->count(tensor);
  call.in_common([&] { return cat("from ", root, " ", describe(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::BroadcastOptions>(caller);
    options.rootRank = root;
    return group.broadcast(tensors, options);
  });
}

Work ProcessGroup::all_gather_async(at::Tensor output, at::Tensor input, Caller caller) {
  ProcessGroupCall call("all_gather", state_.get(), timeout_);
  // Flat: Gloo compares the number of dimensions too.
  at::Tensor to = call.moved(output, true).view(-1);
  at::Tensor from = call.moved(input, false).view(-1);
  call.check_parts(output, input, "output", "input");
  state_->count(from);
  call.in_common([&] { return describe(input); });
  return call.start([&](auto& group) {
    return all_gather_single(group, to, from, call.options<c10d::AllgatherOptions>(caller));
  });
}

Work ProcessGroup::reduce_scatter_async(at::Tensor output,
                                        at::Tensor input,
                                        ReduceOp op,
                                        Caller caller) {
  ProcessGroupCall call("reduce_scatter", state_.get(), timeout_);
  at::Tensor to = call.numbers(output, true, op).view(-1);
  at::Tensor from = call.numbers(input, false, op).view(-1);
  call.check_parts(input, output, "input", "output");
  state_->count(from);
  call.in_common([&] { return cat(to_string(op), " ", describe(input)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::ReduceScatterOptions>(caller);
    options.reduceOp = to_c10d(op);
    return reduce_scatter_single(group, to, from, options);
  });
}

Work ProcessGroup::all_to_all_async(at::Tensor output,
                                    at::Tensor input,
                                    std::vector<int64_t> output_splits,
                                    std::vector<int64_t> input_splits,
                                    Caller caller) {
  ProcessGroupCall call("all_to_all", state_.get(), timeout_);
  at::Tensor to = call.moved(output, true);
  at::Tensor from = call.moved(input, false);
  const auto check =
      [&](const at::Tensor& tensor, const std::vector<int64_t>& splits, const char* name) {
        const bool right = splits.empty()
                               ? tensor.dim() > 0 && tensor.size(0) % state_->size == 0
                               : std::ssize(splits) == state_->size && tensor.dim() > 0 &&
                                     *std::min_element(splits.begin(), splits.end()) >= 0 &&
                                     row_count(splits) == tensor.size(0);
        if (right)
          return;
        throw Error(ErrorCode::invalid_argument,
                    cat("all_to_all: expected ",
                        name,
                        " splits, one a rank (",
                        state_->size,
                        "), that sum to its rows, got [",
                        join(splits, ", "),
                        "] for ",
                        describe(tensor),
                        " (rank ",
                        state_->name(),
                        ")"));
      };
  check(output, output_splits, "output");
  check(input, input_splits, "input");
  state_->count(from);
  if (output.scalar_type() != input.scalar_type() ||
      output.sizes().slice(1) != input.sizes().slice(1)) {
    throw Error(ErrorCode::invalid_argument,
                cat("all_to_all: expected output rows like the input's, got output ",
                    describe(output),
                    " and input ",
                    describe(input),
                    " (rank ",
                    state_->name(),
                    ")"));
  }
  // Ranks may send different amounts; what they share is the type and the shape of a row.
  const std::string row = join(input.sizes().slice(1), ", ");
  call.in_common([&] { return cat(c10::toString(input.scalar_type()), " rows of [", row, "]"); });
  return call.start([&](auto& group) {
    return all_to_all_single(
        group, to, from, output_splits, input_splits, call.options<c10d::AllToAllOptions>(caller));
  });
}

Work ProcessGroup::gather_async(at::Tensor output, at::Tensor input, int root, Caller caller) {
  ProcessGroupCall call("gather", state_.get(), timeout_);
  call.check_root(root);
  std::vector<at::Tensor> inputs{call.moved(input, false)};
  state_->count(inputs[0]);
  std::vector<std::vector<at::Tensor>> outputs;
  if (state_->rank == root) {
    const at::Tensor to = call.moved(output, true);
    call.check_parts(output, input, "output", "input");
    outputs.push_back(parts_of(to, state_->size));
  }
  inputs[0] = inputs[0].view(-1);
  call.in_common([&] { return cat("to ", root, " ", describe(input)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::GatherOptions>(caller);
    options.rootRank = root;
    return group.gather(outputs, inputs, options);
  });
}

Work ProcessGroup::scatter_async(at::Tensor output, at::Tensor input, int root, Caller caller) {
  ProcessGroupCall call("scatter", state_.get(), timeout_);
  call.check_root(root);
  std::vector<at::Tensor> outputs{call.moved(output, true)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (state_->rank == root) {
    const at::Tensor from = call.moved(input, false);
    state_->count(from);
    call.check_parts(input, output, "input", "output");
    inputs.push_back(parts_of(from, state_->size));
  }
  outputs[0] = outputs[0].view(-1);
  call.in_common([&] { return cat("from ", root, " ", describe(output)); });
  return call.start([&](auto& group) {
    auto options = call.options<c10d::ScatterOptions>(caller);
    options.rootRank = root;
    return group.scatter(outputs, inputs, options);
  });
}

Work ProcessGroup::send_async(at::Tensor tensor, int to, int tag) {
  ProcessGroupCall call("send", state_.get(), timeout_);
  call.check_root(to);
  std::vector<at::Tensor> tensors{call.host_tensor(tensor, false)};
  state_->count(tensor);
  if (timeout_ && state_->blocking)
    return call.start_between(
        to, tag, [&](auto&) { return state_->blocking->send_within(tensors, to, tag, *timeout_); });
  return call.start_between(to, tag, [&](auto& group) { return group.send(tensors, to, tag); });
}

Work ProcessGroup::recv_async(at::Tensor tensor, int from, int tag) {
  ProcessGroupCall call("recv", state_.get(), timeout_);
  call.check_root(from);
  std::vector<at::Tensor> tensors{call.host_tensor(tensor, true)};
  if (timeout_ && state_->blocking)
    return call.start_between(from, tag, [&](auto&) {
      return state_->blocking->recv_within(tensors, from, tag, *timeout_);
    });
  return call.start_between(from, tag, [&](auto& group) { return group.recv(tensors, from, tag); });
}

Work ProcessGroup::barrier_async(Caller caller) {
  ProcessGroupCall call("barrier", state_.get(), timeout_);
  call.without_tensors();
  return call.start_barrier(caller);
}

}  // namespace muster
