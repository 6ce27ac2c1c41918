// The façade's collectives. Each makes a ProcessGroupCall, which checks its tensors; says what all
// ranks must have in common; and starts the operation on what takes it. One path is shorter: an
// all_reduce of a plain tensor whose caller waits goes to the backend directly, since a small one
// takes no longer than the detour.
#include "muster/comm/process_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/group_state.h"
#include "muster/comm/host/plain_tensor.h"
#include "muster/comm/process_group_call.h"
#include "muster/comm/torch_compat.h"
#include "muster/comm/work_state.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// The enumerations have the same operations in another order.
c10d::ReduceOp to_c10d(ReduceOp op) {
  using Theirs = c10d::ReduceOp::RedOpType;
  constexpr std::pair<ReduceOp, Theirs> kOps[] = {{ReduceOp::sum, Theirs::SUM},
                                                  {ReduceOp::avg, Theirs::AVG},
                                                  {ReduceOp::min, Theirs::MIN},
                                                  {ReduceOp::max, Theirs::MAX},
                                                  {ReduceOp::product, Theirs::PRODUCT},
                                                  {ReduceOp::band, Theirs::BAND},
                                                  {ReduceOp::bor, Theirs::BOR},
                                                  {ReduceOp::bxor, Theirs::BXOR}};
  return lookup(kOps, op, Theirs::UNUSED);
}

// Whether the backend can take the tensor's memory as it is, and no graph has to do with it.
bool is_plain_on_host(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         !tensor.requires_grad() && is_plain(tensor);
}

// Returns the ranks' parts of a tensor as flat views. The tensor is contiguous: a view would fail
// otherwise.
Tensors parts_of(const Tensor& whole, int parts) {
  const Tensor flat = whole.view({parts, whole.numel() / parts});
  return mapped_indices(parts, [&](int i) { return flat[i]; });
}

// Whether the splits, one a rank, deal out all rows of the tensor; without any, equally many to
// each.
bool are_splits_of(const Int64s& splits, const Tensor& tensor, int ranks) {
  if (tensor.dim() == 0)
    return false;
  if (splits.empty())
    return tensor.size(0) % ranks == 0;
  const bool any_negative = any_of(splits, [](int64_t rows) { return rows < 0; });
  if (std::ssize(splits) != ranks || any_negative)
    return false;
  return sum_of(splits) == tensor.size(0);
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
Device ProcessGroup::device() const {
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

// The copy shares the group, and has a limit of its own. A time that cannot be counted is no limit.
ProcessGroup ProcessGroup::with_timeout(milliseconds timeout) const {
  if (timeout <= milliseconds(0)) {
    throw invalid_argument("with_timeout: expected more than 0 ms, got ",
                           timeout.count(),
                           " (rank ",
                           state_->name(),
                           "); the group's own limit is ",
                           state_->options.timeout.count(),
                           " ms");
  }
  ProcessGroup limited = *this;
  limited.timeout_ = countable(timeout);
  return limited;
}
const StorePtr& ProcessGroup::store() const {
  return state_->store;
}
int ProcessGroup::job_rank(int rank) const {
  return (*state_->names)[rank];
}
int ProcessGroup::job_rank() const {
  return state_->name();
}
Ints ProcessGroup::job_ranks() const {
  return mapped_indices(size(), [this](int rank) { return job_rank(rank); });
}
int ProcessGroup::parent_rank(int rank) const {
  return state_->parent_ranks.at(rank);
}

// shutdown() lets c10d's group go, so that nobody may use it afterwards.
const c10::intrusive_ptr<c10d::ProcessGroup>& ProcessGroup::c10d() const {
  if (!state_->group)
    throw failed_precondition("process group: used after shutdown()");
  return state_->group;
}

// The short path, for a backend that can do without a Work and a tensor that it can take as it is.
// It counts and names the call as the long path does. The backend is not called without the gate:
// it goes with shutdown().
void ProcessGroup::all_reduce(Tensor tensor, ReduceOp op) {
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

// The tensor itself is what the backend reads and writes, unless it is not plain.
Work ProcessGroup::all_reduce_async(Tensor tensor, ReduceOp op, Caller caller) {
  ProcessGroupCall call("all_reduce", *this);
  Tensors tensors{call.numbers(tensor, true, op)};
  state_->count(tensor);
  call.in_common([&] { return cat(to_string(op), " ", tensor_text(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<AllreduceOptions>(caller);
    options.reduceOp = to_c10d(op);
    return group.allreduce(tensors, options);
  });
}

// Every rank's tensor may be written: backends use it for what they add up on the way.
Work ProcessGroup::reduce_async(Tensor tensor, int root, ReduceOp op, Caller caller) {
  ProcessGroupCall call("reduce", *this);
  call.check_root(root);
  Tensors tensors{call.numbers(tensor, true, op)};
  state_->count(tensor);
  call.in_common([&] { return cat(to_string(op), " to ", root, " ", tensor_text(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<ReduceOptions>(caller);
    options.reduceOp = to_c10d(op);
    options.rootRank = root;
    return group.reduce(tensors, options);
  });
}

// Only the root's bytes count as traffic: the others give nothing.
Work ProcessGroup::broadcast_async(Tensor tensor, int root, Caller caller) {
  ProcessGroupCall call("broadcast", *this);
  call.check_root(root);
  Tensors tensors{call.moved(tensor, true)};
  if (state_->rank == root)
    state_->count(tensor);
  call.in_common([&] { return cat("from ", root, " ", tensor_text(tensor)); });
  return call.start([&](auto& group) {
    auto options = call.options<BroadcastOptions>(caller);
    options.rootRank = root;
    return group.broadcast(tensors, options);
  });
}

// Outputs and inputs go flat: Gloo compares the number of dimensions too.
Work ProcessGroup::all_gather_async(Tensor output, Tensor input, Caller caller) {
  ProcessGroupCall call("all_gather", *this);
  call.ends_graph_of(input);
  Tensor to = call.moved(output, true).view(-1);
  Tensor from = call.apart(call.moved(input, false).view(-1), to);
  call.check_parts(output, input, "output", "input");
  state_->count(from);
  call.in_common([&] { return tensor_text(input); });
  return call.start([&](auto& group) {
    return all_gather_single(group, to, from, call.options<AllgatherOptions>(caller));
  });
}

// The input is flat too: a rank's part is what lies at its place in memory.
Work ProcessGroup::reduce_scatter_async(Tensor output, Tensor input, ReduceOp op, Caller caller) {
  ProcessGroupCall call("reduce_scatter", *this);
  call.ends_graph_of(input);
  Tensor to = call.numbers(output, true, op).view(-1);
  Tensor from = call.apart(call.numbers(input, false, op).view(-1), to);
  call.check_parts(input, output, "input", "output");
  state_->count(from);
  call.in_common([&] { return cat(to_string(op), " ", tensor_text(input)); });
  return call.start([&](auto& group) {
    auto options = call.options<ReduceScatterOptions>(caller);
    options.reduceOp = to_c10d(op);
    return reduce_scatter_single(group, to, from, options);
  });
}

// Ranks may send different amounts; what they have in common is the type and the shape of a row.
Work ProcessGroup::all_to_all_async(
    Tensor output, Tensor input, Int64s output_splits, Int64s input_splits, Caller caller) {
  ProcessGroupCall call("all_to_all", *this);
  call.ends_graph_of(input);
  Tensor to = call.moved(output, true);
  Tensor from = call.apart(call.moved(input, false), to);
  const auto check = [&](const Tensor& tensor, const Int64s& splits, const char* name) {
    if (are_splits_of(splits, tensor, state_->size))
      return;
    throw invalid_argument("all_to_all: expected ",
                           name,
                           " splits, one a rank (",
                           state_->size,
                           "), that sum to its rows, got [",
                           join(splits, ", "),
                           "] for ",
                           tensor_text(tensor),
                           " (rank ",
                           state_->name(),
                           ")");
  };
  check(output, output_splits, "output");
  check(input, input_splits, "input");
  state_->count(from);
  if (output.scalar_type() != input.scalar_type() ||
      output.sizes().slice(1) != input.sizes().slice(1)) {
    throw invalid_argument("all_to_all: expected output rows like the input's, got output ",
                           tensor_text(output),
                           " and input ",
                           tensor_text(input),
                           " (rank ",
                           state_->name(),
                           ")");
  }
  const auto row = join(input.sizes().slice(1), ", ");
  call.in_common([&] { return cat(toString(input.scalar_type()), " rows of [", row, "]"); });
  return call.start([&](auto& group) {
    return all_to_all_single(
        group, to, from, output_splits, input_splits, call.options<AllToAllOptions>(caller));
  });
}

// Only the root checks an output; the ranks compare the inputs, which are alike on all of them.
Work ProcessGroup::gather_async(Tensor output, Tensor input, int root, Caller caller) {
  ProcessGroupCall call("gather", *this);
  call.check_root(root);
  Tensors inputs{call.moved(input, false)};
  state_->count(inputs[0]);
  TensorLists outputs;
  if (state_->rank == root) {
    const Tensor to = call.moved(output, true);
    call.check_parts(output, input, "output", "input");
    inputs[0] = call.apart(inputs[0], to);
    outputs.push_back(parts_of(to, state_->size));
  }
  inputs[0] = inputs[0].view(-1);
  call.in_common([&] { return cat("to ", root, " ", tensor_text(input)); });
  return call.start([&](auto& group) {
    auto options = call.options<GatherOptions>(caller);
    options.rootRank = root;
    return group.gather(outputs, inputs, options);
  });
}

// Only the root has an input, whose parts are like every rank's output.
Work ProcessGroup::scatter_async(Tensor output, Tensor input, int root, Caller caller) {
  ProcessGroupCall call("scatter", *this);
  call.check_root(root);
  Tensors outputs{call.moved(output, true)};
  TensorLists inputs;
  if (state_->rank == root) {
    const Tensor from = call.apart(call.moved(input, false), outputs[0]);
    state_->count(from);
    call.check_parts(input, output, "input", "output");
    inputs.push_back(parts_of(from, state_->size));
  }
  outputs[0] = outputs[0].view(-1);
  call.in_common([&] { return cat("from ", root, " ", tensor_text(output)); });
  return call.start([&](auto& group) {
    auto options = call.options<ScatterOptions>(caller);
    options.rootRank = root;
    return group.scatter(outputs, inputs, options);
  });
}

// c10d's own send() has no time limit for one message; muster's backend for the CPU has.
Work ProcessGroup::send_async(Tensor tensor, int to, int tag) {
  ProcessGroupCall call("send", *this);
  call.check_root(to);
  Tensors tensors{call.host_tensor(tensor, false)};
  state_->count(tensor);
  if (timeout_ && state_->blocking)
    return call.start_between(
        to, tag, [&](auto&) { return state_->blocking->send_within(tensors, to, tag, *timeout_); });
  return call.start_between(to, tag, [&](auto& group) { return group.send(tensors, to, tag); });
}

Work ProcessGroup::recv_async(Tensor tensor, int from, int tag) {
  ProcessGroupCall call("recv", *this);
  call.check_root(from);
  Tensors tensors{call.host_tensor(tensor, true)};
  if (timeout_ && state_->blocking)
    return call.start_between(from, tag, [&](auto&) {
      return state_->blocking->recv_within(tensors, from, tag, *timeout_);
    });
  return call.start_between(from, tag, [&](auto& group) { return group.recv(tensors, from, tag); });
}

// A group on GPUs has its barriers there too.
Work ProcessGroup::barrier_async(Caller caller) {
  ProcessGroupCall call("barrier", *this);
  call.without_tensors();
  return call.start_barrier(caller);
}

}  // namespace muster
