// Wrapped modules with their memory, and their forwards and backwards. Only for fully_sharded.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/ddp/gradient_hooks.h"
#include "muster/parallel/sharded/flat_layout.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/scattered_gradients.h"

namespace muster::detail {

// All wrapped modules of a model: their order, and the running backward.
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
      without_parameters;  // outermost modules that only call others
  std::map<const c10::TensorImpl*, const FullyShardedUnit*> owners;  // of parameters

  bool reduces = true;
  bool whole = false;  // the guard of whole_parameters() lives
  int depth = 0;       // of the running forwards
  FullyShardedUnit* last_forward = nullptr;
  FullyShardedUnit* last_backward = nullptr;
  FullyShardedUnit* under_way = nullptr;  // the unit whose gradients are being reduced
  std::weak_ptr<void> graph;              // the running backward
  ShardedTraffic traffic;
};

// What wrap() finds in a module: the parameters that were not already wrapped with an inner module.
struct FullyShardedModuleView {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::set<const torch::nn::Module*> modules;  // itself and all inside
  bool outer = false;                          // it contains wrapped modules
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
  std::vector<std::string> names;              // their names in the module
  std::set<const torch::nn::Module*> modules;  // the wrapped one and all inside
  std::vector<bool> was_trained;               // at construction
  FlatLayout layout;
  at::Tensor flat;                 // all parameters; has memory only while they are gathered
  std::vector<at::Tensor> places;  // the parameters' views of it, made while it had memory
  at::Tensor part;                 // this rank's part, always present
  std::vector<FlatPiece> pieces;
  std::vector<at::Tensor> tensors;  // the pieces, in the part's memory: the optimizer's parameters
  std::unique_ptr<ScatteredGradients> gradients;
  at::Tensor whole;  // of whole_parameters()

  std::optional<Work> gathering;
  bool here = false;
  bool outer = false;   // other wrapped modules run inside its forward
  bool frozen = false;  // has parameters without gradients, whose last use no hook reports
  bool in_backward = false;
  size_t arrived = 0, trained = 0;
  FullyShardedUnit* next_forward = nullptr;   // the unit that came after it last time
  FullyShardedUnit* next_backward = nullptr;  // the same
  GradientHooks hooks;
};

}  // namespace muster::detail
