#include "tests/cuda/fake_nccl.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "muster/comm/shm/backend.h"
#include "tests/cuda/fake_communicator.h"
#include "tests/cuda/fake_graph.h"
#include "tests/cuda/fake_nccl_start.h"
#include "tests/cuda/forwarding_backend.h"

namespace muster::testing {

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Shared memory itself never runs out of time: the communicator's watchdog does.
constexpr std::chrono::hours kNever{24 * 365};

// As shared memory is asked: beside the host, and without a limit.
template <class Options>
Options beside_the_host(Options options) {
  options.asyncOp = true;
  options.timeout = c10d::kUnsetTimeout;
  return options;
}

class FakeNccl : public ForwardingBackend {
 public:
  explicit FakeNccl(const NcclGroup& group)
      : ForwardingBackend(group.rank, group.size),
        communicator_(std::make_shared<Communicator>(group)) {}
  ~FakeNccl() override { communicator_->destroy(); }

  // The ranks connect by sockets of NCCL's own: the store that counts them here tells nobody that
  // its server has gone, or that a rank is not awaited any more.
  void connect(const c10::intrusive_ptr<c10d::Store>& store) {
    const auto all_have_come = [&, this] {
      try {
        return store->add("connecting", std::exchange(is_counted_, true) ? 0 : 1) >= getSize();
      } catch (const std::exception&) {
        return false;
      }
    };
    backend_ = communicator_->connect(
        all_have_come, [&, this] { return make_shm(store, getRank(), getSize(), kNever); });
  }

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
    if (start.is_captured())
      return start.keep(again(&FakeNccl::allreduce, tensors, options));
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
    if (start.is_captured())
      return start.keep(again(&FakeNccl::broadcast, tensors, options));
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
    if (start.is_captured())
      return start.keep([this,
                         communicator = communicator_,
                         held = communicator_->for_graph(),
                         out = by_address(output),
                         in = by_address(input),
                         options]() mutable {
        communicator->expect_alive("a replay");
        return _allgather_base(out, in, options);
      });
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

  // The call as a graph makes it. A communicator that has ended does no more.
  template <class Options>
  std::function<WorkPtr()> again(WorkPtr (FakeNccl::*call)(Tensors&, const Options&),
                                 const Tensors& tensors,
                                 const Options& options) {
    return [this,
            call,
            communicator = communicator_,
            held = communicator_->for_graph(),
            tensors = by_address(tensors),
            options] {
      communicator->expect_alive("a replay");
      Tensors now = tensors;
      return (this->*call)(now, options);
    };
  }

  const std::shared_ptr<Communicator> communicator_;
  bool is_counted_ = false;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_fake_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const NcclGroup& group) {
  quiet_nccl_watchdog();  // as muster_cuda.cc does
  const auto backend = c10::make_intrusive<FakeNccl>(group);
  if (group.made)
    group.made(backend);
  backend->setBoundDeviceId(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.ordinal)));
  backend->connect(store);
  return backend;
}

}  // namespace muster::testing
