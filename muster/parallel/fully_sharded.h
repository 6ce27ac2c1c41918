// A model whose parameters, gradients and optimizer state are divided over a group's ranks (ZeRO-3). A
// module's parameters are gathered before its forward, freed after it, and gathered again before its
// backward, whose gradients are reduced to their owners while the backward goes on.
//
//   muster::FullySharded sharded(group);
//   std::vector<muster::FullyShardedModule<GptBlock>> blocks;    // what is gathered at once
//   for (auto& block : gpt_blocks) blocks.push_back(sharded.wrap(block));
//   auto model = sharded.wrap(gpt);                              // what remains: its forward calls `blocks`
//   torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);   // of this rank's parts
//   … model(batch); loss.backward(); sharded.clip_grad_norm(1.0); optimizer.step();
//
// Memory a rank, in bytes a parameter (fp32, Adam, N ranks): 16/N, and two modules whole with gradients.
// Source: torch.distributed.fsdp.fully_shard; Zhao et al., 2023. C++ modules have no hooks around forward,
// so a wrapper has the forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/outputs.h"
#include "muster/parallel/sharded_traffic.h"

namespace muster {

struct FullyShardedOptions {
  // In which modules compute and parameters are gathered: bf16 halves both. The parts stay as they are.
  std::optional<at::ScalarType> compute_dtype = {};
  std::optional<at::ScalarType> reduce_dtype = {};  // of gradients on their way; the parameters' own without
  bool prefetch = true;  // the next module's parameters are gathered while one computes
  // Ranks of other groups that hold the same parts: gradients are averaged over them too.
  std::optional<ProcessGroup> replicate_group = {};
};

namespace detail {

struct FullyShardedSet;
struct FullyShardedUnit;

// A forward that runs: its module's parameters are there.
class FullyShardedForward {
 public:
  explicit FullyShardedForward(std::shared_ptr<FullyShardedUnit> unit);
  ~FullyShardedForward();
  FullyShardedForward(const FullyShardedForward&) = delete;
  FullyShardedForward& operator=(const FullyShardedForward&) = delete;
  void finish(const std::vector<ForwardOutput>& outputs);

 private:
  std::shared_ptr<FullyShardedUnit> unit_;
};

}  // namespace detail

// A module with its forward: what FullySharded::wrap gives. Copies share it.
template <class Module>
class FullyShardedModule {
 public:
  FullyShardedModule(Module module, std::shared_ptr<detail::FullyShardedUnit> unit)
      : module_(std::move(module)), unit_(std::move(unit)) {}

  // Collective, and so is the backward through what it returns. Throws: failed_precondition where no tensors
  // can be seen in what it returns while gradients are on, or one shares a parameter's memory, which goes;
  // what the module's forward throws, and what a peer's failure gives.
  template <class... Args>
  auto forward(Args&&... args) {
    detail::FullyShardedForward running(unit_);
    auto output = module_->forward(std::forward<Args>(args)...);
    running.finish(outputs_of(output));
    return output;
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  Module& module() { return module_; }

 private:
  Module module_;
  std::shared_ptr<detail::FullyShardedUnit> unit_;
};

class FullySharded {
 public:
  explicit FullySharded(ProcessGroup group, const FullyShardedOptions& options = {});

  // Divides the module's parameters, but for those that were wrapped before. Inner modules first. All ranks
  // must train the same parameters in a backward. A module that only calls wrapped ones needs none of its
  // own. What is frozen now must stay so. Collective: over the group. Throws: invalid_argument, on every
  // rank, for parameters that differ over the ranks, lie on another device than the rank's, are of several
  // types, are tied to a module that was wrapped apart, or are none.
  template <class Module>
  FullyShardedModule<Module> wrap(Module module) {
    auto unit = add(*module);
    return FullyShardedModule<Module>(std::move(module), std::move(unit));
  }

  // This rank's parts, for optimizers that look at each element alone. Not for LBFGS. Each has one dimension.
  std::vector<at::Tensor> parameters() const;
  // A model's parameter groups, which may be made by the parameters' shapes, with this rank's parts in their
  // place. Throws: invalid_argument for a parameter of a module that is not wrapped.
  std::vector<torch::optim::OptimizerParamGroup> parameters(
      const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

  // By the norm of all ranks' gradients. Collective: yes. Returns the norm before.
  at::Tensor clip_grad_norm(double max_norm);

  // While the guard lives, backwards reduce nothing: gradients gather in the parameters, whole.
  [[nodiscard]] std::shared_ptr<void> no_sync();

  // While the guard lives, the modules' parameters are whole on every rank, in their own type: for
  // evaluation, and for save_checkpoint and load_checkpoint, which see a plain model. What is changed in them
  // stays. Forwards are those of the bare modules then. Collective: yes. Throws: failed_precondition for a
  // second one.
  [[nodiscard]] std::shared_ptr<void> whole_parameters();

  // The state of an optimizer of parameters(), as a plain one's of the modules' parameters, and back: for
  // checkpoints. `plain` may have parameters of other models too. Gathering is collective. Throws:
  // invalid_argument for optimizers of two kinds, and for others than SGD, Adam, AdamW, Adagrad and RMSprop.
  // Options (rates) are copied group by group, where both have as many groups.
  void gather_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain);
  void divide_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain);

  // This rank's parts by the names that the outermost module has for their parameters, and its buffers: for
  // Checkpoints::add, with the optimizer of parameters(). Throws: invalid_argument for a module that does not
  // have all that was wrapped.
  TensorPieces pieces(const torch::nn::Module& model) const;

  ShardedTraffic traffic() const;

 private:
  std::shared_ptr<detail::FullyShardedUnit> add(torch::nn::Module& module);

  std::shared_ptr<detail::FullyShardedSet> set_;
};

}  // namespace muster
