// Every override checks its tensors, makes a HostCall and the requests for the carrier, and starts
// them (start() for collectives, start_message() for messages). The gate counts who is inside, so
// that shutdown() can wait until nobody uses the carrier; a forked child may not enter at all.
#include "muster/comm/host/backend.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <climits>
#include <cstdint>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/gate.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/fork_guard.h"
#include "muster/comm/call/profile.h"
#include "muster/comm/call/timeouts.h"
#include "muster/comm/host/call.h"
#include "muster/comm/host/monitored_barrier.h"
#include "muster/comm/host/operation.h"
#include "muster/comm/host/requests.h"
#include "muster/comm/host/sparse_sum.h"
#include "muster/shm/mailbox.h"

namespace muster {

namespace {

using shm::Kind;

// All ranks of a group have one. Any thread may call it; calls are numbered in the order in which
// they are started.
class HostBackend : public c10d::Backend, public BlockingCollectives {
 public:
  HostBackend(
      std::string name, int rank, int size, milliseconds timeout, std::unique_ptr<Carrier> carrier)
      : Backend(rank, size),
        name_(std::move(name)),
        timeout_(countable(timeout)),
        carrier_(std::move(carrier)) {}

  const std::string getBackendName() const override { return name_; }
  void setTimeout(milliseconds timeout) override { timeout_ = countable(timeout); }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}
  bool supportsCoalescing() const override { return false; }

  // Memory of the carrier's, which collectives use without a copy. c10d asks for it by a device's
  // index. Its Reducer asks for complex numbers, and takes what it gets for real ones, both parts
  // of each. A hook may resize what it gets: then it is other memory.
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return device < 0 && carrier_->allocates();  // the CPU's index is -1
  }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    fork_.check("allocate_tensor");  // the memory is the parent's too
    if (options.device().type() != kCPU) {
      throw invalid_argument("allocate_tensor: expected the CPU, got ", options.device().str());
    }
    const ScalarType asked = options.dtype().toScalarType();
    const ScalarType real = c10::toRealValueType(asked);
    const int64_t numbers = c10::isComplexType(asked) ? 2 * size : size;
    const auto memory = carrier_->allocate(numbers * c10::elementSize(real));
    return at::for_blob(memory.get(), {numbers})
        .deleter([memory](void*) {})
        .options(options.dtype(real))
        .resizeable_storage()
        .allocator(c10::GetAllocator(kCPU))
        .make_tensor();
  }

  // Any thread may call it, also while another is in shutdown(), which itself ends what is under
  // way.
  void abort() override {
    if (fork_.in_child())
      return;
    if (const Gate::Pass pass = gate_.enter())
      carrier_->give_up();
  }
  // Whoever is inside ends first: with a failure, since the group is given up where there is
  // anybody.
  void shutdown() override {
    if (fork_.in_child())
      return;
    bool anybody_inside = false;
    if (!gate_.close(&anybody_inside))
      return;
    if (anybody_inside)
      carrier_->give_up();
    gate_.wait_until_empty();
    carrier_->leave();
  }

  // A list of tensors is one call with a request for each.
  WorkPtr allreduce(Tensors& tensors, const AllreduceOptions& options) override {
    return all_reduce(tensors, options);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const AllreduceOptions& options) override {
    return all_reduce(tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& options) override {
    return all_reduce(tensors, options);
  }

  // The record is handed on to allreduce() where the carrier has not run the request, so that there
  // is one.
  void all_reduce_and_wait(const Tensor& tensor, const c10d::ReduceOp& op) override {
    HostCall call("all_reduce", OpType::ALLREDUCE);
    const Gate::Pass pass = enter(call);
    Request request = call.request(Kind::all_reduce, tensor);
    request.op = shm_op(op);
    request.out = {memory_of(tensor)};
    CallRecord record = record_of(call.name, sequence_, &tensor);
    const OuterRecord outer(record);
    try {
      if (!profiler_looks_on() && carrier_->run(request, timeout_)) {
        ++sequence_;
        record.end(/*failed=*/false);
        return;
      }
    } catch (...) {
      record.end(/*failed=*/true);
      throw;
    }
    AllreduceOptions options;
    options.reduceOp = op;
    options.asyncOp = false;
    all_reduce({tensor}, options)->wait();
  }

  // Every rank's tensor is read, and the root's is written.
  WorkPtr reduce(Tensors& tensors, const ReduceOptions& options) override {
    HostCall call("reduce", OpType::REDUCE);
    const Tensor& tensor = call.one(tensors);
    Request request = call.request(Kind::reduce, tensor);
    request.op = shm_op(options.reduceOp);
    request.root = root_of(call, options.rootRank);
    const Part part = call.out(tensor, true);
    request.in = {part};
    if (request.root == getRank())
      request.out = {part};
    return start_requests(call, {std::move(request)}, options);
  }

  // The root's tensor is read and the others' are written; each rank gives it as one that may be
  // both.
  WorkPtr broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    HostCall call("broadcast", OpType::BROADCAST);
    const Tensor& tensor = call.one(tensors);
    Request request = call.request(Kind::broadcast, tensor);
    request.root = root_of(call, options.rootRank);
    request.out = {call.out(tensor, true)};
    return start_requests(call, {std::move(request)}, options);
  }

  // Four forms: a list of outputs, several such lists, one tensor for all, several of these.
  WorkPtr allgather(TensorLists& outputs,
                    Tensors& inputs,
                    const AllgatherOptions& options) override {
    HostCall call("all_gather", OpType::ALLGATHER);
    const Tensors& all = list_for_all(call, outputs, getSize());
    return start_requests(
        call, {gather_of(call, Kind::all_gather, all, call.one(inputs))}, options);
  }
  WorkPtr allgather_coalesced(TensorLists& outputs,
                              Tensors& inputs,
                              const AllgatherOptions& options) override {
    HostCall call("all_gather", OpType::ALLGATHER_COALESCED);
    std::vector<Request> requests = mapped_indices(inputs.size(), [&](size_t i) {
      return gather_of(call, Kind::all_gather, column(call, outputs, i, getSize()), inputs[i]);
    });
    return start_requests(call, std::move(requests), options);
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& options) override {
    HostCall call("all_gather", OpType::_ALLGATHER_BASE);
    return start_requests(call, {all_gather_into(call, output, input, getSize())}, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const AllgatherOptions& options) override {
    HostCall call("all_gather", OpType::_ALLGATHER_BASE);
    call.expect_as_many(outputs, inputs);
    std::vector<Request> requests = mapped_indices(inputs.size(), [&](size_t i) {
      return all_gather_into(call, outputs[i], inputs[i], getSize());
    });
    return start_requests(call, std::move(requests), options);
  }

  // Three forms: a list of inputs, one tensor for all, several of these.
  WorkPtr reduce_scatter(Tensors& outputs,
                         TensorLists& inputs,
                         const ReduceScatterOptions& options) override {
    HostCall call("reduce_scatter", OpType::REDUCE_SCATTER);
    const Tensor& output = call.one(outputs);
    const shm::Op op = shm_op(options.reduceOp);
    const Tensors& parts = list_for_all(call, inputs, getSize());
    Request request = scatter_of(call, Kind::reduce_scatter, output, parts);
    request.op = op;
    return start_requests(call, {std::move(request)}, options);
  }
  WorkPtr _reduce_scatter_base(Tensor& output,
                               Tensor& input,
                               const ReduceScatterOptions& options) override {
    HostCall call("reduce_scatter", OpType::_REDUCE_SCATTER_BASE);
    return start_requests(
        call, {reduce_scatter_into(call, output, input, options.reduceOp, getSize())}, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const ReduceScatterOptions& options) override {
    HostCall call("reduce_scatter", OpType::_REDUCE_SCATTER_BASE);
    call.expect_as_many(outputs, inputs);
    std::vector<Request> requests = mapped_indices(inputs.size(), [&](size_t i) {
      return reduce_scatter_into(call, outputs[i], inputs[i], options.reduceOp, getSize());
    });
    return start_requests(call, std::move(requests), options);
  }

  // Only the root has outputs.
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const GatherOptions& options) override {
    HostCall call("gather", OpType::GATHER);
    const Tensor& input = call.one(inputs);
    const int root = root_of(call, options.rootRank);
    const Tensors parts = root == getRank() ? list_for_all(call, outputs, getSize()) : Tensors();
    Request request = gather_of(call, Kind::gather, parts, input);
    request.root = root;
    return start_requests(call, {std::move(request)}, options);
  }

  // Only the root has inputs.
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const ScatterOptions& options) override {
    HostCall call("scatter", OpType::SCATTER);
    const Tensor& output = call.one(outputs);
    const int root = root_of(call, options.rootRank);
    const Tensors parts = root == getRank() ? list_for_all(call, inputs, getSize()) : Tensors();
    Request request = scatter_of(call, Kind::scatter, output, parts);
    request.root = root;
    return start_requests(call, {std::move(request)}, options);
  }

  // The ranks compare how many bytes each pair exchanges, and no shapes: they may differ.
  WorkPtr alltoall_base(Tensor& output,
                        Tensor& input,
                        Int64s& output_splits,
                        Int64s& input_splits,
                        const AllToAllOptions& options) override {
    HostCall call("all_to_all", OpType::ALLTOALL_BASE);
    Request request{.kind = Kind::all_to_all, .type = shm_type(input)};
    call.expect(output.scalar_type() == input.scalar_type(), "one type", "two");
    request.in = call.rows(input, call.in(input), input_splits, getSize());
    request.out = call.rows(output, call.out(output), output_splits, getSize());
    return start_requests(call, {std::move(request)}, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override {
    HostCall call("all_to_all", OpType::ALLTOALL);
    call.expect(std::ssize(outputs) == getSize() && std::ssize(inputs) == getSize(),
                cat(getSize(), " tensors in and out"),
                cat(inputs.size(), " and ", outputs.size()));
    for (const Tensors& list : {inputs, outputs}) {
      for (const Tensor& tensor : list)
        expect_one_type(call, tensor, inputs[0]);
    }
    Request request{.kind = Kind::all_to_all, .type = shm_type(inputs[0])};
    request.in = mapped(inputs, [&](const Tensor& input) { return call.in(input); });
    request.out = mapped(outputs, [&](const Tensor& output) { return call.out(output); });
    return start_requests(call, {std::move(request)}, options);
  }

  WorkPtr barrier(const BarrierOptions& options) override {
    HostCall call("barrier", OpType::BARRIER);
    return start_requests(call, {Request{.kind = Kind::barrier}}, options);
  }

  // Its errors have the words of Gloo's, which tools look for. Its messages have tags below 0.
  void monitoredBarrier(const BarrierOptions& options, bool wait_all_ranks) override {
    const Gate::Pass pass = enter(HostCall("monitored_barrier", OpType::BARRIER));
    if (!carrier_->has_own_tags())
      return Backend::monitoredBarrier(options, wait_all_ranks);
    const auto number = static_cast<int>(monitored_++ % INT_MAX);
    monitored_barrier(*carrier_,
                      getRank(),
                      getSize(),
                      INT_MIN + number,
                      timeout_of(options.timeout, timeout_),
                      wait_all_ranks);
  }

  // The kind `leave` tells a rank that meets another call there that this one has left too early.
  void leave_and_wait() override {
    start(HostCall("shutdown", OpType::BARRIER), {Request{.kind = Kind::leave}}, timeout_, false)
        ->wait();
  }

  // Messages have no sequence number: each waits for its own partner.
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return send_within(tensors, to, tag, timeout_);
  }
  WorkPtr send_within(Tensors& tensors, int to, int tag, milliseconds timeout) override {
    HostCall call("send", OpType::SEND);
    check_peer(call, to);
    check_tag(call, tag);
    const Part part = message_of(call.in(call.one(tensors)), tensors[0]);
    return start_message(std::move(call), to, tag, [&](auto done) {
      carrier_->send(to, tag, part, timeout, std::move(done));
    });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return recv_within(tensors, from, tag, timeout_);
  }
  // The message is received into the tensor's own memory where that is plain.
  WorkPtr recv_within(Tensors& tensors, int from, int tag, milliseconds timeout) override {
    HostCall call("recv", OpType::RECV);
    check_peer(call, from);
    return receive(std::move(call), tensors, from, tag, timeout);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    HostCall call("recv", OpType::RECVANYSOURCE);
    return receive(std::move(call), tensors, shm::kAnySource, tag, timeout_);
  }

 private:
  WorkPtr receive(HostCall call, const Tensors& tensors, int from, int tag, milliseconds timeout) {
    check_tag(call, tag);
    const Part part = message_of(call.out(call.one(tensors)), tensors[0]);
    return start_message(std::move(call), from, tag, [&](auto done) {
      carrier_->receive(from, tag, part, timeout, std::move(done));
    });
  }
  // c10d gives either of two values where its caller has asked for no limit.
  milliseconds limit(milliseconds asked) const {
    return asked == kNoTimeout ? timeout_ : timeout_of(asked, timeout_);
  }

  static void expect_one_type(const HostCall& call, const Tensor& a, const Tensor& first) {
    call.expect(a.scalar_type() == first.scalar_type(),
                "one type",
                cat(toString(first.scalar_type()), " and ", toString(a.scalar_type())));
  }
  int root_of(const HostCall& call, int64_t root) const {
    call.expect(root >= 0 && root < getSize(), cat("0 <= root < ", getSize()), cat(root));
    return static_cast<int>(root);
  }
  void check_peer(const HostCall& call, int peer) const {
    call.expect(peer >= 0 && peer < getSize() && peer != getRank(),
                cat("another rank of ", getSize()),
                cat(peer));
  }
  // Tags below 0 are the backend's own.
  static void check_tag(const HostCall& call, int tag) {
    call.expect(tag >= 0, "a tag of at least 0", cat(tag));
  }
  // It runs at once, in the caller's thread, since all ranks must first know how many entries there
  // are. What is started afterwards has ended already.
  WorkPtr all_reduce_sparse(const Tensor& tensor, const AllreduceOptions& options) {
    HostCall call("all_reduce", OpType::_ALLREDUCE_SPARSE);
    call.outputs = {tensor};
    show_event(call);
    call.expect(
        shm_op(options.reduceOp) == shm::Op::sum, "sum, for a sparse tensor", "another operation");
    AllgatherOptions gather;
    gather.timeout = options.timeout;
    gather.asyncOp = false;
    tensor.copy_(sparse_sum(tensor, getSize(), [&](Tensor& all, Tensor& mine) {
      _allgather_base(all, mine, gather)->wait();
    }));
    return start_requests(call, {}, options);
  }

  template <class Options>
  WorkPtr all_reduce(const Tensors& tensors, const Options& options) {
    HostCall call("all_reduce", OpType::ALLREDUCE);
    if (tensors.size() == 1 && tensors[0].is_sparse())
      return all_reduce_sparse(tensors[0], options);
    std::vector<Request> requests;
    for (const Tensor& tensor : tensors) {
      Request request = call.request(Kind::all_reduce, tensor);
      request.op = shm_op(options.reduceOp);
      request.out = {call.out(tensor, true)};
      requests.push_back(std::move(request));
    }
    return start_requests(call, std::move(requests), options);
  }

  template <class Options>
  WorkPtr start_requests(HostCall& call, std::vector<Request> requests, const Options& options) {
    return start(std::move(call), std::move(requests), options.timeout, options.asyncOp);
  }

  // Hands the requests to the carrier. The caller's tensors are kept until the call is over.
  WorkPtr start(HostCall call,
                std::vector<Request> requests,
                milliseconds asked,
                bool asynchronous) {
    const Gate::Pass pass = enter(call);
    show_event(call);
    const WaitSpan span(call.name, !asynchronous);
    const int64_t sequence = sequence_++;
    call.record = record_of(call.name, sequence, call.first_tensor());
    auto operation = std::make_shared<HostOperation>(std::move(call));
    auto work = c10::make_intrusive<HostWork>(getRank(), sequence, operation);
    if (requests.empty()) {
      operation->end({});
      return work;
    }
    carrier_->submit({.requests = std::move(requests),
                      .deadline = Deadline(limit(asked)),
                      .asynchronous = asynchronous,
                      .done = ending(std::move(operation))});
    return work;
  }

  // `start` gives the message to the carrier, with what is to be called when it is over.
  template <class Start>
  WorkPtr start_message(HostCall call, int peer, int tag, Start&& start) {
    const Gate::Pass pass = enter(call);
    show_event(call);
    call.record = backend_record(*this, "", call.name, 0, call.first_tensor(), peer, tag);
    auto operation = std::make_shared<HostOperation>(std::move(call));
    auto work = c10::make_intrusive<HostWork>(getRank(), 0, operation);
    start(ending(std::move(operation)));
    return work;
  }

  // Records count from 1, as shared memory's messages do.
  CallRecord record_of(const char* operation, int64_t sequence, const Tensor* tensor) const {
    return backend_record(*this, "", operation, sequence + 1, tensor);
  }

  // "muster:all_reduce", where a profiler looks on, with the shapes of what goes in.
  void show_event(HostCall& call) const {
    if (!call.end_event && profiler_looks_on())
      call.show_event(name_);
  }

  static Carrier::Done ending(std::shared_ptr<HostOperation> operation) {
    return [operation = std::move(operation)](Ended ended) {
      operation->end(std::move(ended));
    };
  }

  // Holds shutdown() off while the caller is inside.
  Gate::Pass enter(const HostCall& call) {
    fork_.check(call.name);
    Gate::Pass pass = gate_.enter();
    if (pass)
      return pass;
    throw failed_precondition(call.name, ": the process group was shut down");
  }

  const std::string name_;
  milliseconds timeout_;
  const std::unique_ptr<Carrier> carrier_;
  Gate gate_;                            // closed before the carrier is left
  std::atomic<int64_t> sequence_ = 0;    // of the collectives
  std::atomic<uint64_t> monitored_ = 0;  // barriers
  const ForkGuard fork_{*this};
};

}  // namespace

BackendPtr make_host_backend(
    std::string name, int rank, int size, milliseconds timeout, std::unique_ptr<Carrier> carrier) {
  return c10::make_intrusive<HostBackend>(std::move(name), rank, size, timeout, std::move(carrier));
}

}  // namespace muster
