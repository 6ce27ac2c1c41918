// Wrapped modules with their memory, and the forwards and backwards that come to them. Inside of
// fully_sharded.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/ddp/gradient_hooks.h"
#include "muster/parallel/flat_layout.h"
#include "muster/parallel/fully_sharded.h"
#include "muster/parallel/scattered_gradients.h"

namespace muster::detail {

// All wrapped modules of a model: their order, and the backward that runs.
struct FullyShardedSet : std::enable_shared_from_this<FullyShardedSet> {
  FullyShardedSet(ProcessGroup group_, const FullyShardedOptions& options_)
      : group(std::move(group_)), options(options_) {}

  void begin_forward();
  void begin_backward();
  void after_graph();
  void reduce(FullyShardedUnit& unit);
  void finish_reduction();
  void forget_failed_backward();

  ProcessGroup group;
  FullyShardedOptions options;
  std::vector<std::shared_ptr<FullyShardedUnit>> units;
  std::vector<std::shared_ptr<FullyShardedUnit>>
      without_parameters;  // outermost modules, which only call others
  std::map<const c10::TensorImpl*, const FullyShardedUnit*> owners;  // of parameters

  bool reduces = true;
  bool whole = false;  // the guard of whole_parameters() lives
  int depth = 0;       // of the forwards that run
  FullyShardedUnit* last_forward = nullptr;
  FullyShardedUnit* last_backward = nullptr;
  FullyShardedUnit* under_way = nullptr;  // its gradients are reduced
  std::weak_ptr<void> graph;              // the backward that runs
  ShardedTraffic traffic;
};

// What wrap() finds in a module: the parameters that no module in it has that was wrapped before.
struct FullyShardedModuleView {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::set<const torch::nn::Module*> modules;  // itself and all in it
  bool outer = false;                          // wrapped modules are in it
  std::string wrong;
};

FullyShardedModuleView view_of_module(const FullyShardedSet& set, torch::nn::Module& module);

struct FullyShardedUnit : std::enable_shared_from_this<FullyShardedUnit> {
  FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_, FullyShardedModuleView module);

  void gather();
  void start_gather();
  void release();
  void prefetch(FullyShardedUnit* next);
  void before_forward();
  void arrange_forward();
  void require_same_trained() const;
  void after_forward(const std::vector<ForwardOutput>& outputs);
  void check_outputs(const std::vector<ForwardOutput>& outputs) const;
  void before_backward();
  void on_gradient(size_t index);
  void after_backward();
  void hang_hooks();
  void make_whole();
  void take_parts();
  void take_replaced();
  bool holds_whole_gradients() const;

  std::weak_ptr<FullyShardedSet> owner;
  ProcessGroup group;
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;              // theirs in the module
  std::set<const torch::nn::Module*> modules;  // the wrapped one and all in it
  std::vector<bool> was_trained;               // at construction
  FlatLayout layout;
  at::Tensor flat;                 // all parameters, whose memory is there only while they are gathered
  std::vector<at::Tensor> places;  // of the parameters in it, made while it was there
  at::Tensor part;                 // this rank's, always there
  std::vector<FlatPiece> pieces;
  std::vector<at::Tensor> tensors;  // the pieces, in the part's memory: what the optimizer sees
  std::unique_ptr<ScatteredGradients> gradients;
  at::Tensor whole;  // of whole_parameters()

  std::optional<Work> gathering;
  bool here = false;
  bool outer = false;   // other wrapped modules run inside of its forward
  bool frozen = false;  // parameters without gradient, whose last use no hook tells
  bool in_backward = false;
  size_t arrived = 0, trained = 0;
  FullyShardedUnit* next_forward = nullptr;   // that came after it the last time
  FullyShardedUnit* next_backward = nullptr;  // the same
  GradientHooks hooks;
};

}  // namespace muster::detail
