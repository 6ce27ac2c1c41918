// Reduces one model's gradients over a process group. This is the part of DistributedDataParallel
// that does not depend on the model's type. It drives PyTorch's own c10d::Reducer as Python's
// DistributedDataParallel does, and reports the mistakes that PyTorch misses
// (docs/design/gradients.md lists them).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/join_rounds.h"
#include "muster/ddp/options.h"
#include "muster/ddp/outputs.h"

namespace muster {

// A model's parameters in registration order, without duplicates.
Tensors distinct_parameters(const torch::nn::Module& model);
Tensors distinct_parameters(const torch::jit::Module& model);

class ModelSource;

class GradientReducer : NoCopy {
 public:
  // Compares the models and broadcasts rank 0's parameters and buffers.
  // Collective: yes.
  // Throws: invalid_argument for models that differ, a model without trainable parameters,
  // parameters on another device than the rank's, wrong device_ids.
  GradientReducer(std::shared_ptr<torch::nn::Module> model,
                  ProcessGroup group,
                  const DdpOptions& options = {});
  GradientReducer(torch::jit::Module model, ProcessGroup group, const DdpOptions& options = {});
  // For a plain list of tensors or of {name, tensor}, such as an optimizer gets. The list is fixed,
  // but its parameters may be frozen and unfrozen. Throws: invalid_argument for tensors computed
  // from others.
  GradientReducer(ModelTensors parameters, ProcessGroup group, const DdpOptions& options = {});
  ~GradientReducer();

  // Call these around every forward. `outputs` are the tensors that forward returned;
  // find_unused_parameters replaces them by others that share their memory. Collective:
  // before_forward, if parameters were frozen, unfrozen, registered or loaded since the last one,
  // if buffers are broadcast, and after a failed backward.
  // Throws: invalid_argument if parameters changed on some ranks only, or if find_unused_parameters
  // gets no outputs; failed_precondition for a first forward inside no_sync with static_graph.
  void before_forward();
  void after_forward(ForwardOutputs outputs);

  // Makes both calls around `compute`, which computes with the parameters and returns tensors.
  template <class Forward>
  auto forward(Forward&& compute) {
    before_forward();
    auto output = compute();
    after_forward(outputs_of(output));
    return output;
  }

  // See DistributedDataParallel::join.
  JoinResult join(const std::function<void()>& body, const JoinOptions& options = {});

  // Whether backwards reduce. Gradients of forwards run while this is false accumulate locally.
  void set_reduce(bool reduces);
  bool reduces() const;

  // Whether backwards have left gradients that no reduction has made equal on all ranks yet: those
  // of no_sync.
  bool has_local_gradients() const;

  // How long this rank computed in the last reduced step, from its first forward to the end of its
  // last backward, without waiting for other ranks; 0 before the first step. Units: seconds of host
  // time, which says little about a GPU.
  double compute_seconds() const;

  // For a step that a CUDA graph will take. What of this model's options or backend the graph could
  // not have; "" for nothing.
  std::string obstacle_to_graph() const;
  // The gradients of later backwards are added on the stream that is current now: PyTorch ties a
  // parameter's accumulator to a stream. To be called between two steps, on all ranks.
  void accumulate_on_this_stream();

  // How often gradients have got other memory; and how often with a Reducer that begins anew.
  uint64_t num_buckets_made() const;
  uint64_t num_reducers_made() const;

  // The next forward broadcasts the buffers, as after a reduced step: a graph's replays are such
  // steps, and call no forward.
  void expect_buffers_to_differ();

  ProcessGroup& group();
  const Hook& hook() const;
  // Whether `parameter` is one of ignored_parameters: each rank keeps its own gradient of it.
  bool ignores(const Tensor& parameter) const;

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
