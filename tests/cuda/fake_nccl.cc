#include "tests/cuda/fake_nccl.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/comm/call/record.h"
#include "muster/comm/hierarchical/forwarding_backend.h"
#include "muster/comm/shm/backend.h"
#include "tests/cuda/fake_communicator.h"
#include "tests/cuda/fake_memory.h"
#include "tests/cuda/fake_streams.h"

namespace muster::testing {

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Shared memory itself never runs out of time: the communicator's watchdog does.
constexpr std::chrono::hours kNever{24 * 365};

// As WorkNCCL: with a limit the host waits too, and after a barrier.
class NcclWork : public c10d::Work {
 public:
  NcclWork(std::shared_ptr<Communicator> communicator,
           std::shared_ptr<Collective> collective,
           Tensors results,
           bool is_barrier)
      : communicator_(std::move(communicator)),
        collective_(std::move(collective)),
        results_(std::move(results)),
        is_barrier_(is_barrier),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{gpu()})) {
    const c10::StreamGuard on_its_own(communicator_->stream());
    future_->markCompleted(c10::IValue(results_));
  }

  // One that has taken too long counts as completed.
  bool isCompleted() override { return exception() || testing::is_over(recorded()); }
  bool isSuccess() const override { return !exception() && collective_->is_over(); }
  std::exception_ptr exception() const override { return collective_->error(); }
  void abort() override { communicator_->abort(); }
  void synchronize() override { block(recorded(), current_stream(gpu())); }
  bool wait(std::chrono::milliseconds timeout) override {
    synchronize();
    if (timeout != kNoTimeout) {
      wait_within(timeout);
    } else if (is_barrier_) {
      let_host_wait(record(current_stream(gpu())));
    }
    if (const auto error = exception()) {
      communicator_->abort();
      std::rethrow_exception(error);
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  Tensors result() override { return results_; }
  int sourceRank() const override {
    collective_->wait();
    return collective_->source();
  }
  uint64_t getSequencenumber() const override { return collective_->sequence(); }

 private:
  c10::Device gpu() const { return communicator_->stream().device(); }
  Recorded recorded() const {
    return {.clock = collective_->operation().knows, .flights = {collective_}};
  }
  void wait_within(std::chrono::milliseconds timeout) {
    const bool over = collective_->wait_until(Deadline(timeout));
    if (!over)
      communicator_->abort();
    TORCH_CHECK_WITH(DistBackendError,
                     over,
                     collective_->operation().name,
                     " #",
                     collective_->sequence(),
                     " timed out in blocking wait.");
    let_host_wait(recorded());
  }

  const std::shared_ptr<Communicator> communicator_;
  const std::shared_ptr<Collective> collective_;
  const Tensors results_;
  const bool is_barrier_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// An operation that is being started, on the communicator's stream: it gives tensors as that has
// them.
class Start {
 public:
  Start(std::shared_ptr<Communicator> communicator, const char* name)
      : communicator_(std::move(communicator)),
        order_(communicator_->order()),
        hidden_(none_),
        operation_(launch_behind(alive(name),
                                 communicator_->stream(),
                                 current_stream(communicator_->stream().device()))) {}

  at::Tensor in(const at::Tensor& tensor) { return reached(tensor, Use::read); }
  at::Tensor out(const at::Tensor& tensor) {
    at::Tensor memory = reached(tensor, Use::write);
    results_.push_back(tensor);
    written_.emplace_back(tensor);
    return memory;
  }
  at::Tensor both(const at::Tensor& tensor) {
    in(tensor);
    return out(tensor);
  }

  Tensors in(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return in(tensor); });
  }
  Tensors out(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return out(tensor); });
  }
  Tensors both(const Tensors& tensors) {
    return each(tensors, [&](const at::Tensor& tensor) { return both(tensor); });
  }
  std::vector<Tensors> in(const std::vector<Tensors>& lists) {
    std::vector<Tensors> found;
    for (const Tensors& list : lists)
      found.push_back(in(list));
    return found;
  }
  std::vector<Tensors> out(const std::vector<Tensors>& lists) {
    std::vector<Tensors> found;
    for (const Tensors& list : lists)
      found.push_back(out(list));
    return found;
  }

  // `on_host` starts it in shared memory, which may have failed since another rank has gone: NCCL
  // would not know.
  template <class OnHost>
  WorkPtr run(OnHost&& on_host, bool is_barrier = false) {
    WorkPtr work;
    try {
      work = on_host();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument)
        throw;
    }
    auto collective = communicator_->add(operation_, std::move(work), std::move(written_));
    add_flight(communicator_->stream(), collective);
    return c10::make_intrusive<NcclWork>(
        communicator_, std::move(collective), std::move(results_), is_barrier);
  }

 private:
  const char* alive(const char* name) {
    communicator_->expect_alive(name);
    return name;
  }

  at::Tensor reached(const at::Tensor& tensor, Use use) {
    TORCH_CHECK_VALUE(tensor.is_cuda() && tensor.layout() == at::kStrided,
                      "Tensors must be CUDA and dense");
    TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()),
                      "Tensors must be contiguous");
    TORCH_CHECK_VALUE(tensor.device() == communicator_->stream().device(),
                      "Tensors must be on the same device");
    record_on_stream(tensor.storage().data_ptr(), communicator_->stream());
    return reach(tensor, operation_, use);
  }

  template <class Each>
  static Tensors each(const Tensors& tensors, Each&& each) {
    Tensors found;
    for (const at::Tensor& tensor : tensors)
      found.push_back(each(tensor));
    return found;
  }

  const std::shared_ptr<Communicator> communicator_;
  const std::unique_lock<std::mutex> order_;  // to the end: as in its stream, so in shared memory
  CallRecord none_;
  const OuterRecord hidden_;  // NCCL writes nothing down itself
  const Operation operation_;
  Tensors results_;
  std::vector<Spoilable> written_;
};

// As shared memory is asked: beside the host, and without a limit.
template <class Options>
Options beside_the_host(Options options) {
  options.asyncOp = true;
  options.timeout = c10d::kUnsetTimeout;
  return options;
}

class FakeNccl : public ForwardingBackend {
 public:
  FakeNccl(const c10::intrusive_ptr<c10d::Backend>& on_host, const NcclGroup& group)
      : ForwardingBackend(on_host), communicator_(std::make_shared<Communicator>(on_host, group)) {}
  ~FakeNccl() override { communicator_->destroy(); }

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return false; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    communicator_->set_timeout(timeout);
  }
  void shutdown() override { communicator_->shutdown(); }
  void abort() override { communicator_->abort(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Start start(communicator_, "all_reduce");
    Tensors memory = start.both(tensors);
    return start.run([&] { return backend_->allreduce(memory, beside_the_host(options)); });
  }
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override {
    TORCH_CHECK(false, "NCCL does not support all_reduce with sparse tensors.");
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    Start start(communicator_, "all_reduce");
    Tensors memory = start.both(tensors);
    return start.run(
        [&] { return backend_->allreduce_coalesced(memory, beside_the_host(options)); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Start start(communicator_, "broadcast");
    Tensors memory = is_root(options) ? start.in(tensors) : start.out(tensors);
    return start.run([&] { return backend_->broadcast(memory, beside_the_host(options)); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    Start start(communicator_, "reduce");
    Tensors memory = is_root(options) ? start.both(tensors) : start.in(tensors);
    return start.run([&] { return backend_->reduce(memory, beside_the_host(options)); });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    Start start(communicator_, "all_gather");
    Tensors in = start.in(inputs);
    std::vector<Tensors> out = start.out(outputs);
    return start.run([&] { return backend_->allgather(out, in, beside_the_host(options)); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs,
                              Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    Start start(communicator_, "all_gather");
    Tensors in = start.in(inputs);
    std::vector<Tensors> out = start.out(outputs);
    return start.run(
        [&] { return backend_->allgather_coalesced(out, in, beside_the_host(options)); });
  }
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    Start start(communicator_, "all_gather");
    at::Tensor in = start.in(input);
    at::Tensor out = start.out(output);
    return start.run([&] { return backend_->_allgather_base(out, in, beside_the_host(options)); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    Start start(communicator_, "all_gather");
    Tensors in = start.in(inputs);
    Tensors out = start.out(outputs);
    return start.run([&] {
      return backend_->allgather_into_tensor_coalesced(out, in, beside_the_host(options));
    });
  }

  WorkPtr reduce_scatter(Tensors& outputs,
                         std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    Start start(communicator_, "reduce_scatter");
    std::vector<Tensors> in = start.in(inputs);
    Tensors out = start.out(outputs);
    return start.run([&] { return backend_->reduce_scatter(out, in, beside_the_host(options)); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Start start(communicator_, "reduce_scatter");
    at::Tensor in = start.in(input);
    at::Tensor out = start.out(output);
    return start.run(
        [&] { return backend_->_reduce_scatter_base(out, in, beside_the_host(options)); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    Start start(communicator_, "reduce_scatter");
    Tensors in = start.in(inputs);
    Tensors out = start.out(outputs);
    return start.run([&] {
      return backend_->reduce_scatter_tensor_coalesced(out, in, beside_the_host(options));
    });
  }

  WorkPtr gather(std::vector<Tensors>& outputs,
                 Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    Start start(communicator_, "gather");
    Tensors in = start.in(inputs);
    std::vector<Tensors> out = start.out(outputs);
    return start.run([&] { return backend_->gather(out, in, beside_the_host(options)); });
  }
  WorkPtr scatter(Tensors& outputs,
                  std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    Start start(communicator_, "scatter");
    std::vector<Tensors> in = start.in(inputs);
    Tensors out = start.out(outputs);
    return start.run([&] { return backend_->scatter(out, in, beside_the_host(options)); });
  }

  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    Start start(communicator_, "all_to_all");
    at::Tensor in = start.in(input);
    at::Tensor out = start.out(output);
    return start.run([&] {
      return backend_->alltoall_base(
          out, in, output_splits, input_splits, beside_the_host(options));
    });
  }
  WorkPtr alltoall(Tensors& outputs,
                   Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    Start start(communicator_, "all_to_all");
    Tensors in = start.in(inputs);
    Tensors out = start.out(outputs);
    return start.run([&] { return backend_->alltoall(out, in, beside_the_host(options)); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Start start(communicator_, "barrier");
    return start.run([&] { return backend_->barrier(beside_the_host(options)); },
                     /*is_barrier=*/true);
  }

  // Messages do not hold each other up, as those of one batch do not on true GPUs.
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    Start start(communicator_, "send");
    Tensors memory = start.in(tensors);
    return start.run([&] { return backend_->send(memory, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    Start start(communicator_, "recv");
    Tensors memory = start.out(tensors);
    return start.run([&] { return backend_->recv(memory, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    Start start(communicator_, "recv");
    Tensors memory = start.out(tensors);
    return start.run([&] { return backend_->recvAnysource(memory, tag); });
  }

 private:
  template <class Options>
  bool is_root(const Options& options) const {
    return options.rootRank == getRank();
  }

  const std::shared_ptr<Communicator> communicator_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_fake_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const NcclGroup& group) {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);  // as muster_cuda.cc does
  const auto backend =
      c10::make_intrusive<FakeNccl>(make_shm(store, group.rank, group.size, kNever), group);
  backend->setBoundDeviceId(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.ordinal)));
  if (group.made)
    group.made(backend);
  return backend;
}

}  // namespace muster::testing
