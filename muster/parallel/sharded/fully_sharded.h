// A model whose parameters, gradients and optimizer state are divided over a group's ranks
// (ZeRO-3). A module's parameters are gathered before its forward, freed after it, and gathered
// again before its backward. Gradients are reduced to their owners while the backward goes on.
//
//   muster::FullySharded sharded(group);
//   std::vector<muster::FullyShardedModule<GptBlock>> blocks;  // the units of gathering
//   for (auto& block : gpt_blocks) blocks.push_back(sharded.wrap(block));
//   // The rest: its forward calls `blocks`.
//   auto model = sharded.wrap(gpt);
//   torch::optim::AdamW optimizer(sharded.parameters(), 1e-3);  // on this rank's parts
//   … model(batch); loss.backward(); sharded.clip_grad_norm(1.0); optimizer.step();
//
// Formula: bytes of memory per parameter and rank (fp32, Adam, N ranks): 16/N, plus two whole
// modules with gradients. Source: torch.distributed.fsdp.fully_shard; Zhao et al., 2023. C++
// modules have no forward hooks, so a wrapper provides the forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"
#include "muster/ddp/outputs.h"
#include "muster/parallel/sharded/sharded_traffic.h"

namespace muster {

struct FullyShardedOptions {
  // The type in which modules compute and parameters are gathered: bf16 halves both. The parts keep
  // their type.
  std::optional<at::ScalarType> compute_dtype = {};
  std::optional<at::ScalarType> reduce_dtype =
      {};                // of gradients in transit; default: the parameters' type
  bool prefetch = true;  // gather the next module's parameters during computation
  // Ranks of other groups with the same parts: gradients are averaged over them too.
  std::optional<ProcessGroup> replicate_group = {};
};

namespace detail {

struct FullyShardedSet;
struct FullyShardedUnit;

// A running forward: it keeps its module's parameters gathered.
class FullyShardedForward : NoCopy {
 public:
  explicit FullyShardedForward(std::shared_ptr<FullyShardedUnit> unit);
  ~FullyShardedForward();
  // Runs the module's own forward. Says what LibTorch does not know of parameters without memory.
  template <class Body>
  auto run(const Body& body) {
    try {
      return body();
    } catch (const c10::Error& error) {
      rethrow(error);
    }
  }
  void finish(const std::vector<ForwardOutput>& outputs);

 private:
  [[noreturn]] void rethrow(const c10::Error& error) const;

  std::shared_ptr<FullyShardedUnit> unit_;
  uint64_t first_node_;  // of autograd's, that it makes
};

}  // namespace detail

// A module with its forward, as returned by FullySharded::wrap. Copies share it.
template <class Module>
class FullyShardedModule {
 public:
  FullyShardedModule(Module module, std::shared_ptr<detail::FullyShardedUnit> unit)
      : module_(std::move(module)), unit_(std::move(unit)) {}

  // Runs the module's forward.
  // Collective: yes, and so is the backward through the result.
  // Throws: failed_precondition, with gradients on, if the result holds no visible tensors or if
  // one shares the memory of a parameter, which will be freed; the same for parameters that got new
  // values (torch::load) which differ between ranks; invalid_argument where ranks run different
  // modules; whatever the module's forward throws, and failures of peers.
  template <class... Args>
  auto forward(Args&&... args) {
    detail::FullyShardedForward running(unit_);
    auto output = running.run([&] { return module_->forward(std::forward<Args>(args)...); });
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

  // Divides the module's parameters, except those already wrapped: wrap inner modules first. All
  // ranks must run the modules in the same order, and in each backward train the same parameters. A
  // module that only calls wrapped ones needs no parameters of its own. Parameters that are frozen
  // now must stay frozen. Collective: over the group. Throws: invalid_argument, on every rank, for
  // parameters that differ between ranks, are on another device than the rank's, have several
  // types, are tied to a separately wrapped module, or do not exist.
  template <class Module>
  FullyShardedModule<Module> wrap(Module module) {
    auto unit = add(*module);
    return FullyShardedModule<Module>(std::move(module), std::move(unit));
  }

  // This rank's parts, each with one dimension, for elementwise optimizers (not LBFGS).
  Tensors parameters() const;
  // Replaces the parameters in a model's parameter groups by this rank's parts; groups may thus be
  // formed by the parameters' shapes. A parameter that a group names twice comes once. Throws:
  // invalid_argument for a parameter of a module that is not wrapped, or of two groups.
  std::vector<torch::optim::OptimizerParamGroup> parameters(
      const std::vector<torch::optim::OptimizerParamGroup>& groups) const;

  // Clips by the norm of all ranks' gradients. Returns the norm before clipping. Collective: yes.
  // Throws: c10::Error for gradients of no_sync() that no backward has reduced; failed_precondition
  // for layers that are divided over another group besides.
  at::Tensor clip_grad_norm(double max_norm);

  // While the guard lives, backwards reduce nothing: whole gradients add up, in the type of the
  // reduction. Until a backward reduces them, reading the parts' gradients is an error, as a step
  // of their optimizer does.
  [[nodiscard]] std::shared_ptr<void> no_sync();

  // While the guard lives, every rank has the modules' whole parameters in their own type, for
  // evaluation, and for save_checkpoint and load_checkpoint, which see a plain model. Changes to
  // them are kept. Forwards are those of the bare modules. Collective: yes. Throws:
  // failed_precondition for a second guard.
  [[nodiscard]] std::shared_ptr<void> whole_parameters();

  // Converts the state of an optimizer of parameters() to that of a plain optimizer of the modules'
  // parameters, and back, for checkpoints. `plain` may have parameters of other models too. Options
  // (rates) are copied group by group, if the numbers of groups are equal. Collective:
  // gather_state. Throws: invalid_argument for optimizers of two kinds, and for kinds other than
  // SGD, Adam, AdamW, Adagrad and RMSprop.
  void gather_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain);
  void divide_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain);

  // This rank's parts, by the outermost module's names for their parameters, and its buffers: for
  // Checkpoints::add, with the optimizer of parameters(). Throws: invalid_argument for a module
  // that lacks anything that was wrapped.
  TensorPieces pieces(const torch::nn::Module& model) const;

  ShardedTraffic traffic() const;

 private:
  std::shared_ptr<detail::FullyShardedUnit> add(torch::nn::Module& module);

  std::shared_ptr<detail::FullyShardedSet> set_;
};

}  // namespace muster
