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
  // since the last one, and where buffers are broadcast. `outputs` are the tensors in what forward has
  // returned; find_unused_parameters replaces them by others of the same memory.
  void before_forward();
  void after_forward(const std::vector<at::Tensor*>& outputs);

  // Gradients of forwards run while this is false stay local and accumulate.
  void set_reduce(bool reduce);
  bool reduces() const;

  ProcessGroup& group();

 private:
  struct State;  // shared with the hooks in the autograd graph, which may outlive this object
  std::shared_ptr<State> state_;
};

}  // namespace muster
