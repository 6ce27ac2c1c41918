// Reduces one model's gradients over a process group: PyTorch's own c10d::Reducer, driven as Python's
// DistributedDataParallel drives it, with its silent holes closed (docs/design.md lists them). The part of
// DistributedDataParallel that does not depend on the model's type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/ddp/join_rounds.h"
#include "muster/ddp/options.h"
#include "muster/ddp/outputs.h"

namespace muster {

// A model's parameters in registration order, without repetitions.
std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model);
std::vector<at::Tensor> distinct_parameters(const torch::jit::Module& model);

class ModelSource;

class GradientReducer {
 public:
  // Collective: compares the models, broadcasts rank 0's parameters and buffers. Throws: invalid_argument for
  // models that differ, a model without trainable parameters, parameters on another device than the rank's,
  // wrong device_ids.
  GradientReducer(std::shared_ptr<torch::nn::Module> model, ProcessGroup group,
                  const DdpOptions& options = {});
  GradientReducer(torch::jit::Module model, ProcessGroup group, const DdpOptions& options = {});
  // A plain list, of tensors or of {name, tensor}: what an optimizer gets. It stays as it is, but for what is
  // frozen and unfrozen. Throws: invalid_argument for tensors that were computed from others.
  GradientReducer(std::vector<NamedTensor> parameters, ProcessGroup group, const DdpOptions& options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Around every forward. before_forward is collective where parameters were frozen, unfrozen or registered
  // since the last one, where buffers are broadcast, and after a backward that failed. after_forward's
  // `outputs` are the tensors in what forward has returned; find_unused_parameters replaces them by others of
  // the same memory. Throws: invalid_argument where parameters have changed on some ranks only, and with
  // find_unused_parameters for no outputs; failed_precondition for a first forward with static_graph inside
  // no_sync.
  void before_forward();
  void after_forward(std::vector<ForwardOutput> outputs);

  // All of that around a function that computes with the parameters and returns tensors, as above.
  template <class Forward>
  auto forward(Forward&& compute) {
    before_forward();
    auto output = compute();
    after_forward(outputs_of(output));
    return output;
  }

  // As DistributedDataParallel::join.
  JoinResult join(const std::function<void()>& body, const JoinOptions& options = {});

  // Gradients of forwards run while this is false stay local and accumulate.
  void set_reduce(bool reduces);
  bool reduces() const;

  // What this rank has computed for the last step that was reduced, from its first forward to the end of its
  // last backward, without waiting for other ranks; 0 before the first. Units: seconds of the host's clock,
  // which says little of a GPU.
  double compute_seconds() const;

  ProcessGroup& group();
  const Hook& hook() const;
  // Whether it is one of ignored_parameters: its gradient is each rank's own.
  bool ignores(const at::Tensor& parameter) const;

  struct State;  // gradient_reducer.cc

 private:
  struct Source {
    std::shared_ptr<const ModelSource> model;
  };
  GradientReducer(Source source, ProcessGroup group, const DdpOptions& options);

  // Shared with the hooks in the autograd graph, which may outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace muster
