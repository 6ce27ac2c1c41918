// A backend that leaves everything to another one, for backends that do one thing differently.
// c10d's callers know the operations by these names in every version that is supported.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muster {

class ForwardingBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  explicit ForwardingBackend(c10::intrusive_ptr<c10d::Backend> backend)
      : Backend(backend->getRank(), backend->getSize()), backend_(std::move(backend)) {}
  // One that gets the other backend later.
  ForwardingBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return backend_->supportsTensorAlloc(device);
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return backend_->allocateTensor(size, options);
  }
  void setTimeout(std::chrono::milliseconds timeout) override { backend_->setTimeout(timeout); }
  uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return backend_->allreduce(tensors, options);
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return backend_->allreduce_sparse(tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return backend_->allreduce_coalesced(tensors, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return backend_->broadcast(tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return backend_->reduce(tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return backend_->allgather(outputs, inputs, options);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs,
                              Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return backend_->allgather_coalesced(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return backend_->_allgather_base(output, input, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return backend_->allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs,
                         std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return backend_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return backend_->_reduce_scatter_base(output, input, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return backend_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs,
                 Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return backend_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs,
                  std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return backend_->scatter(outputs, inputs, options);
  }
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return backend_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs,
                   Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return backend_->alltoall(outputs, inputs, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return backend_->barrier(options);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    backend_->monitoredBarrier(options, wait_all_ranks);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return backend_->send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return backend_->recv(tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return backend_->recvAnysource(tensors, tag);
  }

 protected:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace muster
