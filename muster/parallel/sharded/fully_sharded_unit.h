// Wrapped modules with their memory, and their forwards and backwards. Only for fully_sharded.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/gradient_hooks.h"
#include "muster/ddp/layer_members.h"
#include "muster/ddp/outputs.h"
#include "muster/parallel/outside_watch.h"
#include "muster/parallel/sharded/call_order.h"
#include "muster/parallel/sharded/flat_layout.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/gradient_buffers.h"
#include "muster/parallel/sharded/gradient_stand_ins.h"
#include "muster/parallel/sharded/new_values.h"
#include "muster/parallel/sharded/optimizer_parts.h"
#include "muster/parallel/sharded/sampled_gradients.h"
#include "muster/parallel/sharded/scattered_gradients.h"
#include "muster/parallel/sharded/unreduced_gradients.h"

namespace muster::detail {

// All wrapped modules of a model: their order, and the running backward.
// The memory that a parameter left. A parameter that still lies in it was tied to that one.
struct LeftMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t begin = 0, end = 0;  // elements of it
  bool is_trained = false;
};

struct FullyShardedSet : std::enable_shared_from_this<FullyShardedSet> {
  FullyShardedSet(ProcessGroup group_, const FullyShardedOptions& options_)
      : group(std::move(group_)), options(options_) {}

  void begin_forward();
  void refuse_lbfgs();
  void warn_of_late_parameters(const Module& module);
  void begin_backward();
  void after_graph();
  void end_graph();
  void guard_memory(bool guarded);
  void reduce(FullyShardedUnit& unit);
  void finish_reduction();
  void forget_failed_backward();

  ProcessGroup group;
  FullyShardedOptions options;
  std::shared_ptr<GradientBuffers> buffers = std::make_shared<GradientBuffers>(group);
  std::vector<std::shared_ptr<FullyShardedUnit>> units;
  std::vector<std::shared_ptr<FullyShardedUnit>>
      without_parameters;  // outermost modules that only call others
  std::map<const TensorImpl*, const FullyShardedUnit*> owners;  // of parameters
  TensorImpls late;  // trained, and in no part: each is told once
  std::vector<LeftMemory> left;
  std::vector<AssignedMember> assigned;  // of the modules that were wrapped

  bool reduces = true;
  bool whole = false;  // the guard of whole_parameters() lives
  int depth = 0;       // of the running forwards
  FullyShardedUnit* last_forward = nullptr;
  FullyShardedUnit* last_backward = nullptr;
  FullyShardedUnit* under_way = nullptr;  // the unit whose gradients are being reduced
  std::weak_ptr<void> graph;              // the running backward
  int64_t trained_forwards = 0;           // in which the caller was looked for
  int64_t graphs = 0;                     // backwards until now, and the running one's number
  bool makes_graph = false;               // the running backward makes one itself, for another
  bool adds = false;                      // it has added to a gradient
  bool guards_memory = false;             // that of parameters which are not gathered
  bool guards_after_graph = false;        // a forward goes on after the running backward
  bool kept_are_done = false;             // the next forward frees what was kept for a backward
  ShardedTraffic traffic;
  CallOrder gathers, reductions;
  NewValues new_parts{"fully sharded", group};  // that the replicas must have got too
  SameSamplesWarning same_samples{"fully sharded"};
  OutsideWatch outside{"fully sharded"};
};

// The places of parameters before they get memory of their own, and whether a parameter lies in
// one.
std::vector<LeftMemory> memory_of_parameters(const Tensors& parameters);
bool lies_in_left(const Tensor& parameter, const std::vector<LeftMemory>& left);

// What wrap() finds in a module: the parameters that were not already wrapped with an inner module.
struct FullyShardedModuleView {
  Tensors parameters;
  Strings names;
  std::set<const Module*> modules;     // itself and all inside
  std::weak_ptr<const Module> module;  // itself, if it is shared
  std::vector<AssignedMember> assigned;
  bool outer = false;  // it contains wrapped modules
  std::string wrong;
};

FullyShardedModuleView view_of_module(const FullyShardedSet& set, Module& module);

// A forward that a backward may come through.
struct FullyShardedUse {
  size_t exits = 0;   // graph_exits.h
  int64_t graph = 0;  // the last backward that came to its outputs
  size_t left = 0;    // exits that this one has not come to
};

struct FullyShardedUnit : std::enable_shared_from_this<FullyShardedUnit> {
  FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_,
                   int64_t number_,
                   FullyShardedModuleView view);

  void allocate_memory();
  void release_memory();
  void guard_memory(bool guarded);
  void gather();
  void gather_in_forward();
  void start_gather();
  void release();
  void prefetch(FullyShardedUnit* next);
  void before_forward();
  void arrange_forward();
  void require_same_trained() const;
  void after_forward(const std::vector<ForwardOutput>& outputs, uint64_t first_node);
  void watch_backward(const std::vector<ForwardOutput>& outputs, uint64_t first_node);
  void require_unwritten() const;
  void check_outputs(const std::vector<ForwardOutput>& outputs) const;
  void before_backward();
  void on_output(FullyShardedUse& use);
  void on_exit(FullyShardedUse& use);
  void on_gradient(size_t index);
  size_t gradients_of_graph() const;
  void release_when_done();
  void forget_backward();
  void clear_parts();
  void guard_parts();
  void hang_hooks();
  void make_whole();
  void divide_whole();
  void take_parts();
  void take_replaced();
  void require_same_type(size_t parameter) const;
  void expect_gathered(size_t parameter, const Tensor& values);
  Tensor kept_part() const;
  void note_new_part(const Tensor& before);
  void tell_replicas();
  void require_expected(const Tensor& gathered);
  bool holds_whole_gradients() const;
  OptimizerParts parts() const { return {layout, parameters, pieces, tensors, part.options()}; }

  std::weak_ptr<FullyShardedSet> owner;
  int64_t number;  // in its set, for all ranks to compare
  ProcessGroup group;
  Tensors parameters;
  Strings names;                       // their names in the module
  std::set<const Module*> modules;     // the wrapped one and all inside
  std::weak_ptr<const Module> module;  // the wrapped one, if it is shared
  std::vector<bool> was_trained;       // at construction
  FlatLayout layout;
  Tensor flat;     // all parameters; has memory only while they are gathered
  Tensors places;  // the parameters' views of it, made while it had memory
  Tensor part;     // this rank's part, always present
  FlatPieces pieces;
  Tensors tensors;  // the pieces, in the part's memory: the optimizer's parameters
  std::unique_ptr<ScatteredGradients> gradients;
  std::unique_ptr<GradientStandIns> stand_ins;    // of the parameters
  std::unique_ptr<UnreducedGradients> unreduced;  // in the tensors
  Tensor whole;                                   // of whole_parameters()
  Int64s versions;                                // of the parameters when they became whole
  Int64s gathered_versions;                       // and when they were gathered
  std::set<const TensorImpl*> renormalized;       // parameters that their embeddings write to
  std::map<size_t, int64_t> expected;  // hashes of parameters that got new values, by their places
  int64_t expected_part = 0;           // that of the part with them
  Tensor part_of_replicas;             // before new values that these have not heard of

  std::optional<Work> gathering;
  Tensor sent;  // what the gather under way reads
  bool here = false;
  bool runs = false;   // its forward, which reads the memory
  bool kept = false;   // the graph that a backward has made reads the memory
  bool outer = false;  // other wrapped modules run inside its forward
  size_t trained = 0;  // parameters, at construction
  bool in_backward = false;
  size_t open_uses = 0;  // forwards whose outputs the backward has come to, and not yet all exits
  size_t arrived = 0, awaited = 0;            // gradients, of this backward
  FullyShardedUnit* next_forward = nullptr;   // the unit that came after it last time
  FullyShardedUnit* next_backward = nullptr;  // the same
  GradientHooks hooks;
};

}  // namespace muster::detail
