// PyTorch's Gloo under muster's name, and with what muster's other backend has and Gloo has not: all_to_all
// of lists, means of halves that do not overflow on the way, and a profiler's events by one name. Base of
// hierarchical.cc; alone where no two ranks share a host.
#pragma once

#include "muster/comm/call/fork_guard.h"
#include "muster/comm/hierarchical/forwarding_backend.h"

namespace muster {

class OverGloo : public ForwardingBackend {
 public:
  explicit OverGloo(c10::intrusive_ptr<c10d::Backend> gloo) : ForwardingBackend(std::move(gloo)) {}

  const std::string getBackendName() const override { return "muster"; }

  void setTimeout(std::chrono::milliseconds timeout) override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void abort() override;
  void shutdown() override;

 protected:
  // The sum, of which it is made, may be more than the type has.
  static bool is_mean_of_halves(const at::Tensor& tensor, const c10d::ReduceOp& op);

  const ForkGuard& fork() const { return fork_; }

 private:
  const ForkGuard fork_{*this};
};

}  // namespace muster
