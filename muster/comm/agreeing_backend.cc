#include "muster/comm/agreeing_backend.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/comm/agreement.h"
#include "muster/comm/forwarding_backend.h"

namespace muster {

namespace {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return cat(c10::toString(tensor.scalar_type()), " [", join(tensor.sizes(), ", "), "]");
}

std::string text_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> each;
  each.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) each.push_back(text_of(tensor));
  return join(each, ", ");
}

std::string text_of(const c10d::ReduceOp& op) {
  constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  const auto at = static_cast<size_t>(static_cast<c10d::ReduceOp::RedOpType>(op));
  return at < std::size(kNames) ? kNames[at] : cat("operation ", at);
}

class AgreeingBackend : public ForwardingBackend {
 public:
  AgreeingBackend(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
                  std::chrono::milliseconds timeout)
      : ForwardingBackend(backend),
        agreement_(std::move(store), backend->getRank(), backend->getSize(), timeout, false) {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    agree("all_reduce ", text_of(options.reduceOp), " ", text_of(tensors));
    return ForwardingBackend::allreduce(tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    agree("all_reduce ", text_of(options.reduceOp), " ", text_of(tensors));
    return ForwardingBackend::allreduce_coalesced(tensors, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    agree("broadcast from ", options.rootRank, " ", text_of(tensors));
    return ForwardingBackend::broadcast(tensors, options);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    agree("reduce ", text_of(options.reduceOp), " to ", options.rootRank, " ", text_of(tensors));
    return ForwardingBackend::reduce(tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    agree("all_gather ", text_of(inputs));
    return ForwardingBackend::allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    agree("all_gather ", text_of(input));
    return ForwardingBackend::_allgather_base(output, input, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    agree("all_gather ", text_of(inputs));
    return ForwardingBackend::allgather_into_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    agree("reduce_scatter ", text_of(options.reduceOp), " to ", text_of(outputs));
    return ForwardingBackend::reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    agree("reduce_scatter ", text_of(options.reduceOp), " to ", text_of(output));
    return ForwardingBackend::_reduce_scatter_base(output, input, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    agree("reduce_scatter ", text_of(options.reduceOp), " to ", text_of(outputs));
    return ForwardingBackend::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    agree("gather to ", options.rootRank, " ", text_of(inputs));
    return ForwardingBackend::gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    agree("scatter from ", options.rootRank, " ", text_of(outputs));
    return ForwardingBackend::scatter(outputs, inputs, options);
  }
  // Ranks may send each other different amounts.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    agree("all_to_all of ", c10::toString(input.scalar_type()));
    return ForwardingBackend::alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    agree("all_to_all of lists");
    return ForwardingBackend::alltoall(outputs, inputs, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    agree("barrier");
    return ForwardingBackend::barrier(options);
  }

 private:
  template <class... Parts>
  void agree(const Parts&... parts) {
    agreement_.before(calls_++, cat(parts...));
  }

  Agreement agreement_;
  std::atomic<int64_t> calls_ = 0;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_agreeing(c10::intrusive_ptr<c10d::Backend> backend,
                                                c10::intrusive_ptr<c10d::Store> store,
                                                std::chrono::milliseconds timeout) {
  return c10::make_intrusive<AgreeingBackend>(std::move(backend), std::move(store), timeout);
}

}  // namespace muster
