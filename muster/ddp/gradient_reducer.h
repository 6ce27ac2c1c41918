// Reduces one model's gradients over a process group: PyTorch's own c10d::Reducer, driven as Python's
// DistributedDataParallel drives it, with its silent holes closed (docs/design.md lists them). The part of
// DistributedDataParallel that does not depend on the model's type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/ddp/options.h"
#include "muster/ddp/outputs.h"

namespace muster {

// A model's parameters in registration order, without repetitions.
std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model);

class GradientReducer {
 public:
  // Collective: compares the models, broadcasts rank 0's parameters and buffers. Throws: invalid_argument for
  // models that differ, a model without trainable parameters, parameters on another device than the rank's,
  // wrong device_ids.
  GradientReducer(std::shared_ptr<torch::nn::Module> model, ProcessGroup group, const DdpOptions& options);
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

  // Gradients of forwards run while this is false stay local and accumulate.
  void set_reduce(bool reduce);
  bool reduces() const;

  ProcessGroup& group();

  struct State;  // gradient_reducer.cc

 private:
  // Shared with the hooks in the autograd graph, which may outlive this object.
  std::shared_ptr<State> state_;
};

}  // namespace muster
