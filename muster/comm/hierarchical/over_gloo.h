// PyTorch's Gloo with what muster's other backends have and Gloo does not: tensors of any layout
// and type, all_to_all and reduce_scatter of lists, means of halves that do not overflow on the
// way, messages that are compared, and, under muster's name, a profiler's events. hierarchical.cc
// derives from it; it is used alone where no two ranks share a host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/lists.h"
#include "muster/base/rank_names.h"
#include "muster/base/tensors.h"
#include "muster/comm/call/c10d_pointers.h"
#include "muster/comm/call/fork_guard.h"
#include "muster/comm/hierarchical/gloo_call.h"
#include "muster/comm/hierarchical/gloo_messages.h"

namespace muster {

class OverGloo : public c10d::Backend {
 public:
  // getBackendName() returns `name`. As "gloo" it leaves the events to Gloo, which has the same.
  // Errors call the ranks by `names`, or without any by their own numbers.
  explicit OverGloo(BackendPtr gloo, std::string name = "muster", RankNames names = {})
      : Backend(gloo->getRank(), gloo->getSize()),
        backend_(std::move(gloo)),
        name_(std::move(name)),
        messages_(backend_, std::move(names)) {}

  const std::string getBackendName() const override { return name_; }
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return backend_->supportsTensorAlloc(device);
  }
  Tensor allocateTensor(long size, at::TensorOptions options) override {
    return backend_->allocateTensor(size, options);
  }
  uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }

  void setTimeout(milliseconds timeout) override;

  WorkPtr allreduce(Tensors& tensors, const AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs,
                    Tensors& inputs,
                    const AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs,
                              Tensors& inputs,
                              const AllgatherOptions& options) override;
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs,
                         TensorLists& inputs,
                         const ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(Tensor& output,
                               Tensor& input,
                               const ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const ReduceScatterOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const ScatterOptions& options) override;
  WorkPtr alltoall_base(Tensor& output,
                        Tensor& input,
                        Int64s& output_splits,
                        Int64s& input_splits,
                        const AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& options) override;
  WorkPtr barrier(const BarrierOptions& options) override;
  void monitoredBarrier(const BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void abort() override;
  void shutdown() override;

 protected:
  const ForkGuard& fork() const { return fork_; }

  BackendPtr backend_;  // Gloo

 private:
  // `start` gives Gloo what the GlooCall makes of its tensors.
  template <class Start>
  WorkPtr call(const char* operation, const Tensors& tensors, const Start& start);
  template <class Start>
  WorkPtr shown(const char* operation, const Tensors& tensors, const Start& start) const;
  // c10d::Backend has an Options of its own.
  template <class CallOptions>
  WorkPtr reduced(const char* operation,
                  const Tensors& tensors,
                  const CallOptions& options,
                  WorkPtr (Backend::*method)(Tensors&, const CallOptions&));
  template <class CallOptions>
  WorkPtr gathered(const char* operation,
                   const TensorLists& outputs,
                   const Tensors& inputs,
                   const CallOptions& options,
                   WorkPtr (Backend::*method)(TensorLists&, Tensors&, const CallOptions&));
  WorkPtr reduce_and_cut(GlooCall& call,
                         const Tensors& inputs,
                         const Tensor& output,
                         const ReduceScatterOptions& options);

  const std::string name_;
  GlooMessages messages_;
  const ForkGuard fork_{*this};
};

}  // namespace muster
