// What concerns all wrapped modules of fully sharded training together: the beginning and end of
// forwards and backwards, and one reduction at a time. The units do what concerns one module.
#include <ATen/core/grad_mode.h>

#include <cstdint>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/number.h"
#include "muster/ddp/graph_end.h"
#include "muster/ddp/live_reducers.h"
#include "muster/optim/lbfgs_caller.h"
#include "muster/parallel/sharded/fully_sharded_unit.h"

namespace muster::detail {

// Whatever an earlier forward has left gathered may be older than the parts, so it is released.
void FullyShardedSet::begin_forward() {
  last_forward = nullptr;
  if (!graph.expired())
    return;  // computed again in a backward
  forget_failed_backward();
  for (const auto& unit : units) {
    unit->clear_parts();
    unit->guard_parts();
    if (kept_are_done)
      unit->kept = false;
    unit->release();
    unit->here = false;
    unit->take_replaced();
  }
  kept_are_done = false;
}

// Its closure calls the forward, so that its first forwards tell.
void FullyShardedSet::refuse_lbfgs() {
  constexpr int64_t kLookedForwards = 2;
  const bool is_trained = at::GradMode::is_enabled() && any_of(units, [](const auto& unit) {
                            return any_of(unit->parameters, &Tensor::requires_grad);
                          });
  if (group.size() == 1 || trained_forwards == kLookedForwards || !is_trained)
    return;
  ++trained_forwards;
  optim::refuse_lbfgs_caller("fully sharded", group.job_rank());
}

// A module replaced or a parameter registered after wrap() is in no part: nobody trains it, unless
// the program does.
void FullyShardedSet::warn_of_late_parameters(const Module& module) {
  if (!at::GradMode::is_enabled() || !graph.expired())
    return;
  for (const auto& item : module.named_parameters()) {
    const Tensor& parameter = item.value();
    const TensorImpl* const which = parameter.unsafeGetTensorImpl();
    const bool is_known = owners.contains(which) || is_of_wrapped_model(parameter);
    if (is_known || !parameter.requires_grad() || !late.insert(which).second || group.rank() != 0)
      continue;
    log_warning("fully sharded: expected every trained parameter to be there at wrap(), got '",
                item.key(),
                "' later, so parameters() does not have it and its gradient is not averaged (rank ",
                group.job_rank(),
                "); replace modules and register parameters before wrap(), or average and step it "
                "yourself");
  }
}

// The callback belongs to the graph that runs now, and goes with it, also when that fails.
void FullyShardedSet::begin_backward() {
  if (!graph.expired())
    return;
  forget_failed_backward();
  for (const auto& unit : units) {
    unit->clear_parts();
    unit->stand_ins->lift();
    if (reduces)
      unit->tell_replicas();
  }
  guards_after_graph = guards_memory && depth > 0;
  guard_memory(true);
  ++graphs;
  adds = false;
  if (reduces)
    outside.look();
  makes_graph = at::GradMode::is_enabled();
  if (makes_graph)
    kept_are_done = false;
  graph =
      at_graph_end(weak_from_this(), &FullyShardedSet::after_graph, &FullyShardedSet::end_graph);
}

void FullyShardedSet::forget_failed_backward() {
  for (const auto& unit : units) {
    unit->gradients->drop();
    unit->forget_backward();
  }
  under_way = nullptr;
  last_backward = nullptr;
}

// One at a time: it is reduced while the next module's backward computes.
void FullyShardedSet::reduce(FullyShardedUnit& unit) {
  finish_reduction();
  const CallNumber of_the_unit(reductions.number_of(unit.number));
  unit.gradients->start();
  traffic.scattered += unit.gradients->bytes();
  under_way = &unit;
}

void FullyShardedSet::finish_reduction() {
  if (under_way == nullptr)
    return;
  FullyShardedUnit& unit = *under_way;
  under_way = nullptr;
  new_parts.tell(unit.number, [&] { take_reduced(unit, same_samples, group); });
}

// The end of a backward. Units that were not complete, or hold gradients of earlier ones, are
// reduced now, in the same order on all ranks. A unit that is frozen whole is not reduced.
void FullyShardedSet::after_graph() {
  for (const auto& unit : units) {
    give_gradients_to_this_stream(unit->tensors);
    const bool unfinished = unit->in_backward && unit->arrived < unit->awaited;
    if (reduces && (unfinished || (adds && unit->holds_whole_gradients()))) {
      unit->gradients->use_here();
      reduce(*unit);
    }
    unit->forget_backward();
  }
  finish_reduction();
  if (reduces && adds)
    for (const auto& unit : units)
      unit->gradients->drop_of_frozen();
  if (reduces)
    outside.compare(group, options.replicate_group);
  for (const auto& unit : units)
    unit->release();
  kept_are_done = !makes_graph;
  graph.reset();
  end_graph();
}

void FullyShardedSet::end_graph() {
  for (const auto& unit : units) {
    unit->stand_ins->put();
    unit->guard_parts();
  }
  guard_memory(guards_after_graph);
}

// From a forward to the end of its backward, reading what has no memory is an error. At other times
// it cannot be: torch::load looks at the memory that it replaces.
void FullyShardedSet::guard_memory(bool guarded) {
  if (guards_memory == guarded)
    return;
  guards_memory = guarded;
  for (const auto& unit : units)
    unit->guard_memory(guarded);
}

}  // namespace muster::detail
