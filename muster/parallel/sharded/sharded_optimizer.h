// An optimizer whose state is divided over a group's ranks (ZeRO-1), optionally with the gradients
// (ZeRO-2). Each rank takes the step for an equal part of the elements, then all ranks get the new
// values.
//
//   muster::DistributedDataParallel model(net, group);
//   muster::ShardedOptimizer<torch::optim::AdamW> optimizer(net->parameters(),
//                                                           AdamWOptions(1e-3),
//                                                           group);
//   … loss.backward(); optimizer.step();
//
// For ZeRO-2 do not wrap the model: `{.gradients = true}` reduces each gradient to its owner in
// backward. Formula: bytes of memory per parameter and rank (fp32, Adam, N ranks): 4 + 4 + 8/N, or
// 4 + 4/N + 8/N plus two buckets. Source: torch.distributed.optim.ZeroRedundancyOptimizer;
// Rajbhandari et al., 2020.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"
#include "muster/optim/optim.h"
#include "muster/parallel/sharded/sharded_traffic.h"

namespace muster {

struct ShardedOptimizerOptions {
  bool gradients = false;  // ZeRO-2
  double bucket_mb = 25;   // MiB that are gathered or reduced at once
  // For ZeRO-2: ranks of other groups with the same part; gradients are averaged over them too.
  std::optional<ProcessGroup> replicate_group = {};
};

// The part that does not depend on the kind of optimizer.
class ShardedOptimizerBase : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using MakeInner = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;
  ~ShardedOptimizerBase() override;

  // Takes one step on this rank's part, then all-gathers the parameters. If one rank skips a step,
  // all must. Collective: yes. Throws: failures of peers; failed_precondition for sparse gradients,
  // for groups whose parameters are no longer those of the constructor, and for parameters of
  // another type than then, for gradients of no_sync(), and, in the first steps, for whole
  // gradients that differ between ranks; invalid_argument if ranks have loaded other values into
  // the parameters, or not all have.
  at::Tensor step(LossClosure closure = nullptr) override;

  // Clears the model's gradients, and those already reduced.
  void zero_grad(bool set_to_none = true);

  // While the guard lives, backwards reduce nothing (ZeRO-2): whole gradients accumulate in the
  // parameters.
  [[nodiscard]] std::shared_ptr<void> no_sync();

  // For ZeRO-2: clips by the norm over all ranks' parts. (ZeRO-1 has whole gradients: use
  // muster::clip_grad_norm.) Returns the norm before clipping. Collective: yes. Throws:
  // failed_precondition for layers that are divided over another group besides.
  at::Tensor clip_grad_norm(double max_norm);

  // The optimizer that steps on this rank's part; its state is this rank's.
  torch::optim::Optimizer& part();

  // Converts the state to that of a plain optimizer of the same kind and parameters, and back, for
  // checkpoints. Options (rates) are copied group by group, if the numbers of groups are equal.
  // Collective: gather_state.
  // Throws: invalid_argument for an optimizer of another kind.
  void gather_state(torch::optim::Optimizer& plain);
  void divide_state(torch::optim::Optimizer& plain);

  // torch::save and torch::load would see none of the state, which lies in part(). Throws:
  // failed_precondition.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // The parameters of part() by the model's names, for Checkpoints::add("optimizer", optimizer,
  // pieces). Throws: invalid_argument for a model that lacks any of them.
  TensorPieces pieces(const torch::nn::Module& model) const;
  // Copies the options (rates) of each group to part(), and back.
  void options_to_part();
  void options_from_part();

  ShardedTraffic traffic() const;

  struct State;  // sharded_optimizer.cc

 protected:
  ShardedOptimizerBase(const char* kind,
                       Groups groups,
                       std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                       const MakeInner& make,
                       ProcessGroup group,
                       const ShardedOptimizerOptions& options);

 private:
  std::shared_ptr<State> state_of_shards_;
};

namespace detail {
template <class Optimizer>
struct OptionsOfOptimizer;  // specialise it for an elementwise optimizer of your own
template <>
struct OptionsOfOptimizer<torch::optim::SGD> {
  using type = torch::optim::SGDOptions;
  static constexpr const char* kElementwise = "SGD";
};
template <>
struct OptionsOfOptimizer<torch::optim::Adam> {
  using type = torch::optim::AdamOptions;
  static constexpr const char* kElementwise = "Adam";
};
template <>
struct OptionsOfOptimizer<torch::optim::AdamW> {
  using type = torch::optim::AdamWOptions;
  static constexpr const char* kElementwise = "AdamW";
};
template <>
struct OptionsOfOptimizer<optim::SGD> : OptionsOfOptimizer<torch::optim::SGD> {};
template <>
struct OptionsOfOptimizer<optim::Adam> : OptionsOfOptimizer<torch::optim::Adam> {};
template <>
struct OptionsOfOptimizer<optim::AdamW> : OptionsOfOptimizer<torch::optim::AdamW> {};
template <>
struct OptionsOfOptimizer<torch::optim::Adagrad> {
  using type = torch::optim::AdagradOptions;
  static constexpr const char* kElementwise = "Adagrad";
};
template <>
struct OptionsOfOptimizer<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropOptions;
  static constexpr const char* kElementwise = "RMSprop";
};
template <>
struct OptionsOfOptimizer<torch::optim::LBFGS> {  // it treats all gradients as one vector
  using type = torch::optim::LBFGSOptions;
  static constexpr const char* kElementwise = nullptr;
};
}  // namespace detail

// The parameters become parts of flat buffers: the same tensors, in other memory. param_groups()
// holds the model's parameters (ZeRO-1) or this rank's parts of them (ZeRO-2). Their options apply,
// so a Schedule works.
template <class Kind>
class ShardedOptimizer : public ShardedOptimizerBase {
 public:
  using Options = typename detail::OptionsOfOptimizer<Kind>::type;

  // Collective: over `group`.
  // Throws: invalid_argument, on every rank, for an optimizer that is not elementwise (LBFGS), or
  // parameters that differ between ranks or are on another device than the rank's.
  ShardedOptimizer(Groups groups,
                   const Options& options,
                   ProcessGroup group,
                   const ShardedOptimizerOptions& sharding = {})
      : ShardedOptimizerBase(
            detail::OptionsOfOptimizer<Kind>::kElementwise,
            std::move(groups),
            std::make_unique<Options>(options),
            [&options](const Groups& parts) { return std::make_unique<Kind>(parts, options); },
            std::move(group),
            sharding) {}
  ShardedOptimizer(Tensors parameters,
                   const Options& options,
                   ProcessGroup group,
                   const ShardedOptimizerOptions& sharding = {})
      : ShardedOptimizer(Groups{torch::optim::OptimizerParamGroup(std::move(parameters))},
                         options,
                         std::move(group),
                         sharding) {}
};

}  // namespace muster
