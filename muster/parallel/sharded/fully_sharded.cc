// The public face of fully sharded training: wrapping modules, and everything that concerns all
// units together. A unit (fully_sharded_unit.cc) gathers and releases the parameters of one wrapped
// module. The set of all units is held by the modules, so it lives as long as any of them.
#include "muster/parallel/sharded/fully_sharded.h"

#include <exception>
#include <string>
#include <string_view>

#include <ATen/SequenceNumber.h>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/ddp/options.h"
#include "muster/ddp/renormalized.h"
#include "muster/optim/each_once.h"
#include "muster/optim/parts.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/sharded/flat_pieces.h"
#include "muster/parallel/sharded/fully_sharded_unit.h"
#include "muster/parallel/sharded/optimizer_parts.h"

namespace muster {

namespace detail {

// The object lives as long as one forward of the module. Its first node tells which nodes are of
// this forward.
FullyShardedForward::FullyShardedForward(std::shared_ptr<FullyShardedUnit> unit)
    : unit_(std::move(unit)) {
  unit_->before_forward();
  first_node_ = at::sequence_number::peek();
}

// Also when the forward throws.
FullyShardedForward::~FullyShardedForward() {
  unit_->runs = false;
  if (const auto set = unit_->owner.lock())
    --set->depth;
}

// A view of parameters that are not gathered is one of too little memory.
void FullyShardedForward::rethrow(const c10::Error& error) const {
  if (std::string_view(error.what_without_backtrace()).find("storage of size 0") ==
      std::string_view::npos)
    throw;
  throw failed_precondition(
      "fully sharded: expected a forward that reads parameters of its own wrapped "
      "module, got a look at others, which have no memory meanwhile (rank ",
      unit_->group.job_rank(),
      "); call wrapped modules by what wrap() returned, and wrap in one module what "
      "shares a weight, also by an assigned member (head->weight = embed->weight): ",
      error.what_without_backtrace());
}

void FullyShardedForward::finish(const ForwardOutputs& outputs) {
  unit_->after_forward(outputs, first_node_);
}

}  // namespace detail

using detail::FullyShardedSet;
using detail::FullyShardedUnit;

FullySharded::FullySharded(ProcessGroup group, const FullyShardedOptions& options)
    : set_(std::make_shared<FullyShardedSet>(std::move(group), options)) {}

// All ranks add their modules in one order, inner ones first.
std::shared_ptr<FullyShardedUnit> FullySharded::add(Module& module) {
  detail::FullyShardedModuleView view = detail::view_of_module(*set_, module);
  const Tensors& parameters = view.parameters;
  std::string wrong = view.wrong;
  for (const Tensor& parameter : parameters) {
    if (parameter.scalar_type() != parameters[0].scalar_type()) {
      wrong = cat("fully sharded: expected parameters of one type in a module, got ",
                  toString(parameters[0].scalar_type()),
                  " and ",
                  toString(parameter.scalar_type()),
                  " (rank ",
                  set_->group.job_rank(),
                  "); wrap the modules of each type separately");
    }
    if (detail::lies_in_left(parameter, set_->left)) {
      wrong =
          cat("fully sharded: expected trained parameters with memory of their own, got one over "
              "that of a module that was wrapped before, as set_data ties them (rank ",
              set_->group.job_rank(),
              "); tie weights by register_parameter with one tensor, in one wrapped module");
    }
  }
  if (wrong.empty())
    wrong = wrapped_problem("fully sharded", parameters, set_->group);
  const auto type_of = [](const std::optional<ScalarType>& type) {
    return type ? toString(*type) : "the parameters'";
  };
  const Terms terms = {{"compute_dtype", type_of(set_->options.compute_dtype)},
                       {"reduce_dtype", type_of(set_->options.reduce_dtype)},
                       {"prefetch", cat(set_->options.prefetch)}};
  const bool only_calls = parameters.empty() && view.outer;  // none of its own
  const auto agree = [&](ProcessGroup& group) {
    if (only_calls)
      return require_agreement(group, "fully sharded", wrong, terms);
    agree_on_parameters("fully sharded", parameters, wrong, terms, group);
  };
  agree(set_->group);
  if (set_->options.replicate_group)
    agree(*set_->options.replicate_group);
  const std::vector<detail::LeftMemory> memory = detail::memory_of_parameters(parameters);
  std::erase_if(set_->left, [](const auto& old) { return old.storage.expired(); });
  append_all(set_->left, memory);
  append_all(set_->assigned, view.assigned);
  auto& units = only_calls ? set_->without_parameters : set_->units;
  units.push_back(std::make_shared<FullyShardedUnit>(set_, std::ssize(units), std::move(view)));
  FullyShardedUnit& unit = *units.back();
  for (const Tensor& parameter : unit.parameters)
    set_->owners.emplace(parameter.unsafeGetTensorImpl(), &unit);
  optim::record_parts(unit.tensors);
  optim::mark_divided_gradients(unit.tensors);
  optim::mark_divided_gradients(unit.parameters);
  for (const NamedTensor& weight : weights_with_max_norm(module))
    unit.renormalized.insert(weight.tensor.unsafeGetTensorImpl());
  std::vector<NamedTensor> renormalized = renormalized_weights(module);
  std::erase_if(renormalized, [&](const NamedTensor& weight) {
    return set_->owners.at(weight.tensor.unsafeGetTensorImpl()) != &unit;
  });
  warn_of_renormalized("fully sharded", renormalized, set_->group);
  return {set_, &unit};  // whoever has the module keeps the set
}

// Frozen parameters are left out, since an optimizer has nothing to step.
Tensors FullySharded::parameters() const {
  Tensors all;
  for (const auto& unit : set_->units) {
    for (const size_t i : indices_of(unit->pieces))
      if (unit->parameters[unit->pieces[i].parameter].requires_grad())
        all.push_back(unit->tensors[i]);
  }
  return all;
}

namespace {

// This rank's parts of a parameter.
Tensors parts_of(const FullyShardedSet& set, const Tensor& parameter) {
  const FullyShardedUnit* const owner = find_or(set.owners, parameter.unsafeGetTensorImpl());
  if (owner == nullptr) {
    throw invalid_argument(
        "fully sharded: expected groups of the wrapped modules' parameters, got "
        "another one of shape [",
        sizes_text(parameter),
        "] (rank ",
        set.group.job_rank(),
        "); wrap the module that it is in first");
  }
  Tensors parts;
  for (const size_t i : indices_of(owner->pieces))
    if (owner->parameters[owner->pieces[i].parameter].is_same(parameter))
      parts.push_back(owner->tensors[i]);
  return parts;
}

}  // namespace

// Groups keep their options; only their parameters become this rank's parts.
optim::ParameterGroups FullySharded::parameters(const optim::ParameterGroups& groups) const {
  optim::ParameterGroups divided = groups;
  optim::keep_each_once("fully sharded", divided, cat(" (rank ", set_->group.job_rank(), ")"));
  for (OptimizerParamGroup& group : divided)
    group.params() = concatenated(
        group.params(), [this](const Tensor& parameter) { return parts_of(*set_, parameter); });
  return divided;
}

// All ranks call it together. Gradients that the program has cleared must not count.
Tensor FullySharded::clip_grad_norm(double max_norm) {
  for (const auto& unit : set_->units) {
    require_whole_layers(unit->parameters, set_->group);
    unit->clear_parts();
    unit->guard_parts();
  }
  return clip_sharded_grads(parameters(), max_norm, set_->group);
}

// The guard puts back what was before, so guards may nest.
std::shared_ptr<void> FullySharded::no_sync() {
  const bool before = set_->reduces;
  set_->reduces = false;
  return {nullptr, [set = set_, before](void*) { set->reduces = before; }};
}

namespace {

// Runs in the destructor of a guard, which must not throw. A GPU that has failed does, and says so
// to the next call too.
void end_whole(FullyShardedSet& set) {
  set.whole = false;
  try {
    for (const auto& unit : set.units)
      unit->take_parts();
  } catch (const std::exception& error) {
    log_error("whole_parameters: the parameters were not divided again: ",
              first_line(error),
              " (rank ",
              set.group.job_rank(),
              "); restore them from a checkpoint");
  }
}

}  // namespace

// All ranks call it together, since it gathers. The end of the guard exchanges nothing.
std::shared_ptr<void> FullySharded::whole_parameters() {
  if (set_->whole) {
    throw failed_precondition(
        "whole_parameters: expected no guard of an earlier call, got one that still "
        "exists (rank ",
        set_->group.job_rank(),
        "); end its scope first");
  }
  for (const auto& unit : set_->units)
    unit->make_whole();
  set_->whole = true;
  return {nullptr, [set = set_](void*) { end_whole(*set); }};
}

// All ranks call it together. `plain` gets the state of whole parameters on every rank.
void FullySharded::gather_state(Optimizer& optimizer, Optimizer& plain) {
  for (const auto& unit : set_->units)
    gather_optimizer_state(unit->parts(), optimizer, plain, set_->group);
  copy_group_options(optimizer, plain);
}

// It exchanges nothing: every rank has the whole state, and takes its parts.
void FullySharded::divide_state(Optimizer& optimizer, Optimizer& plain) {
  for (const auto& unit : set_->units)
    divide_optimizer_state(unit->parts(), optimizer, plain);
  copy_group_options(plain, optimizer);
}

TensorPieces FullySharded::pieces(const Module& model) const {
  const ParameterNames names(model);
  TensorPieces pieces;
  // Values that were loaded beside the flat buffers are taken over first.
  for (const auto& unit : set_->units)
    if (!set_->whole)
      unit->take_replaced();
  for (const auto& unit : set_->units)
    add_flat_pieces(pieces, "fully sharded", names, unit->parts());
  for (const auto& item : model.named_parameters()) {
    if (set_->owners.contains(item.value().unsafeGetTensorImpl()))
      continue;
    throw invalid_argument(
        "fully sharded: expected a model whose parameters are all divided, got '",
        item.key(),
        "', which is not (rank ",
        set_->group.job_rank(),
        "); wrap the module that it is in");
  }
  for (const auto& item : model.named_buffers())
    pieces.push_back(buffer_piece(item.key(), item.value()));
  note_model(pieces, model);
  return pieces;
}

ShardedTraffic FullySharded::traffic() const {
  return set_->traffic;
}

}  // namespace muster
