// One wrapped module of fully sharded training. Its parameters are views of `flat`, whose memory
// comes and goes; between uses only `part` is there. Forward and backward of the module gather it,
// and release it when nothing reads it any more. Autograd keeps views of `flat`, and finds the
// memory that is there at the time, so the storage stays and only its memory is exchanged. Reads
// while there is no memory are errors (guard_memory).
#include "muster/parallel/sharded/fully_sharded_unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "muster/base/absent_memory.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/comm/call/number.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/shared_tensor.h"
#include "muster/comm/torch_compat.h"
#include "muster/ddp/replica_check.h"
#include "muster/parallel/sharded/graph_exits.h"
#include "muster/parallel/tensor_bytes.h"

namespace muster::detail {

namespace {

// Whoever reads a gradient that lies in the parts gets this text as an error.
std::string look_at_gradient(const ProcessGroup& group) {
  return cat(
      "fully sharded: expected gradients to be read from sharded.parameters(), got a look at that "
      "of a module's own parameter, which lies in the ranks' parts (rank ",
      group.job_rank(),
      "); give optimizers sharded.parameters(), clip by sharded.clip_grad_norm(), clear with "
      "zero_grad() without an argument");
}

// Whoever reads a part's gradient gets this text while those of no_sync() are not reduced.
std::string look_at_part(const ProcessGroup& group) {
  return cat(
      "fully sharded: expected gradients that were averaged over the ranks, got a look at those of "
      "sharded.parameters() after a backward inside no_sync(), whose gradients are not in them "
      "(rank ",
      group.job_rank(),
      "); run the last backward before each step outside of no_sync()");
}

std::string look_at_parameter(const std::string& name, const ProcessGroup& group) {
  return cat(
      "fully sharded: expected parameters to be read in their wrapped module's forward, or while "
      "whole_parameters() lives, got a look at those of the module of '",
      name,
      "' while they have no memory (rank ",
      group.job_rank(),
      "); call the module that wrap() returned, give optimizers sharded.parameters(), and load "
      "weights while whole_parameters() lives");
}

// The storage calls it on a write, without a context, so the message names no rank.
void refuse_write(c10::StorageImpl*) {
  throw failed_precondition(
      "fully sharded: expected a module's own parameters to be changed while "
      "whole_parameters() lives, got a change while they have no memory; give optimizers "
      "sharded.parameters()");
}

std::string tied_apart(const std::string& name, const ProcessGroup& group) {
  return cat("fully sharded: expected parameters that one wrapped module alone has, got '",
             name,
             "', which is tied to one that was wrapped before (rank ",
             group.job_rank(),
             "); wrap one module that holds both, and neither of them");
}

// Members that were assigned compute with parameters of other modules: those of this module with
// parameters that were wrapped before, or those of modules that were wrapped before with parameters
// of this one.
std::string assigned_apart(const FullyShardedSet& set, const FullyShardedModuleView& view) {
  for (const AssignedMember& member : view.assigned) {
    const auto* const owner = find_or(set.owners, member.tensor.unsafeGetTensorImpl());
    if (owner != nullptr && !owner->modules.contains(member.layer))
      return tied_apart(member.name, set.group);
  }
  for (const AssignedMember& member : set.assigned) {
    const auto is_it = [&](const Tensor& parameter) {
      return parameter.is_same(member.tensor);
    };
    const auto parameter = std::ranges::find_if(view.parameters, is_it);
    if (parameter != view.parameters.end() && !view.modules.contains(member.layer))
      return tied_apart(view.names[parameter - view.parameters.begin()], set.group);
  }
  return {};
}

}  // namespace

std::vector<LeftMemory> memory_of_parameters(const Tensors& parameters) {
  std::vector<LeftMemory> memory;
  for (const Tensor& parameter : parameters) {
    const int64_t begin = parameter.storage_offset();
    const int64_t length =
        parameter.is_non_overlapping_and_dense() ? parameter.numel() : int64_t{1};
    memory.push_back({.storage = parameter.storage().getWeakStorageImpl(),
                      .begin = begin,
                      .end = begin + length,
                      .is_trained = parameter.requires_grad()});
  }
  return memory;
}

// Only a storage that somebody still has can be the parameter's.
bool lies_in_left(const Tensor& parameter, const std::vector<LeftMemory>& left) {
  const LeftMemory mine = memory_of_parameters({parameter})[0];
  return any_of(left, [&](const LeftMemory& other) {
    return !other.storage.expired() && other.storage == mine.storage && mine.begin < other.end &&
           other.begin < mine.end && (mine.is_trained || other.is_trained);
  });
}

// A weight of a wrapped module that a module outside of it has too would be read without memory
// there.
FullyShardedModuleView view_of_module(const FullyShardedSet& set, Module& module) {
  FullyShardedModuleView view;
  view.module = module.weak_from_this();
  TensorImpls seen;
  const auto look_at = [&](const Module& inner, const NamedTensor& parameter) {
    const TensorImpl* const which = parameter.tensor.unsafeGetTensorImpl();
    if (const auto* const owner = find_or(set.owners, which)) {
      view.outer = true;
      if (!owner->modules.contains(&inner))
        view.wrong = tied_apart(parameter.name, set.group);
    } else if (seen.insert(which).second) {
      view.parameters.push_back(parameter.tensor);
      view.names.push_back(parameter.name);
    }
  };
  module.apply([&](const std::string& prefix, Module& inner) {
    view.modules.insert(&inner);
    const std::string before = prefix.empty() ? "" : cat(prefix, ".");
    for (const auto& item : inner.named_parameters(/*recurse=*/false))
      look_at(inner, {cat(before, item.key()), item.value()});
  });
  const auto has_it = [&](const auto& unit) {
    return unit->modules.contains(&module);
  };
  const bool is_wrapped = any_of(set.units, has_it) || any_of(set.without_parameters, has_it);
  if (view.parameters.empty() && is_wrapped)
    view.wrong =
        cat("fully sharded: expected a module whose parameters are not wrapped, got one that is "
            "wrapped already or lies in one that is (rank ",
            set.group.job_rank(),
            "); wrap inner modules first, each once");
  view.assigned = assigned_members(module);
  if (view.wrong.empty())
    view.wrong = assigned_apart(set, view);
  return view;
}

// The parameters are divided at the end of it: only the part has memory then.
FullyShardedUnit::FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_,
                                   int64_t number_,
                                   FullyShardedModuleView view)
    : owner(set_),
      number(number_),
      group(set_->group),
      parameters(std::move(view.parameters)),
      names(std::move(view.names)),
      modules(std::move(view.modules)),
      module(std::move(view.module)),
      layout(parameters, group.size()),
      outer(view.outer) {
  if (parameters.empty())
    return;
  const NoGradGuard no_grad;
  const FullyShardedOptions& options = set_->options;
  was_trained = mapped(parameters, &Tensor::requires_grad);
  trained = std::ranges::count(was_trained, true);
  whole = at::empty({layout.length()}, parameters[0].options().requires_grad(false));
  flatten_parameters(layout, whole, parameters);
  flat = at::empty({layout.length()},
                   whole.options().dtype(options.compute_dtype.value_or(whole.scalar_type())));
  places = mapped_indices(parameters.size(), [&](size_t i) { return layout.place(flat, i); });
  release_memory();
  part = empty_shared(group, layout.part, whole.options());
  pieces = layout.pieces(group.rank());
  tensors = mapped(pieces, [&](const FlatPiece& piece) {
    return part.narrow(0, piece.at, piece.length).detach().requires_grad_();
  });
  gradients =
      std::make_unique<ScatteredGradients>(parameters,
                                           layout,
                                           group,
                                           set_->buffers,
                                           options.replicate_group,
                                           options.reduce_dtype.value_or(whole.scalar_type()));
  stand_ins = std::make_unique<GradientStandIns>(
      parameters, look_at_gradient(group), [weak = std::weak_ptr<FullyShardedSet>(set_)] {
        if (const auto set = weak.lock())
          set->begin_backward();
      });
  unreduced = std::make_unique<UnreducedGradients>(tensors, look_at_part(group));
  divide_whole();
}

// Autograd keeps the storage, and finds the memory that is in it at backward.
void FullyShardedUnit::allocate_memory() {
  c10::StorageImpl& storage = *flat.storage().unsafeGetStorageImpl();
  if (storage.nbytes() > 0)
    return;
  const size_t bytes = flat.numel() * flat.element_size();
  {
    const c10::OptionalDeviceGuard device(flat.device());
    storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  }
  storage.set_nbytes(bytes);
  allow_reads(storage);
  allow_writes(storage);
}

// The storage stays, since autograd's views of it do.
void FullyShardedUnit::release_memory() {
  c10::StorageImpl& storage = *flat.storage().unsafeGetStorageImpl();
  if (flat.is_cpu()) {
    note_absent_memory(
        storage.nbytes(),
        "parameters of a fully sharded model have no memory between steps; read them "
        "while whole_parameters() lives\n");
  }
  storage.reset();
  refuse_writes(storage, &refuse_write);
  const auto set = owner.lock();
  if (set && set->guards_memory)
    refuse_reads(storage, look_at_parameter(names[0], group));
}

// Memory that is there may always be read, so only an empty storage is guarded.
void FullyShardedUnit::guard_memory(bool guarded) {
  c10::StorageImpl& storage = *flat.storage().unsafeGetStorageImpl();
  if (storage.nbytes() > 0)
    return;
  if (guarded) {
    refuse_reads(storage, look_at_parameter(names[0], group));
  } else {
    allow_reads(storage);
  }
}

// Starts the gather, if it is neither done nor under way.
void FullyShardedUnit::start_gather() {
  if (here || gathering)
    return;
  const NoGradGuard no_grad;
  allocate_memory();
  const auto set = owner.lock();
  const CallNumber of_this_unit(set->gathers.number_of(number));
  sent = part.to(flat.scalar_type());
  gathering = group.all_gather_async(flat, sent);
  set->traffic.gathered += bytes_of_tensor(flat);
}

// Blocking: until the parameters are here. The memory may have been made on the stream of a hook
// that has gathered them ahead.
void FullyShardedUnit::gather() {
  if (here)
    return;
  start_gather();
  Work work = *gathering;
  gathering.reset();
  work.wait();
  here = true;
  use_on_this_stream({flat, sent});
  sent.reset();
  require_expected(flat);
  gathered_versions = mapped(parameters, &Tensor::_version);
}

// A gather that was started ahead is ended first: its memory may still be written. `kept` holds the
// parameters for a second backward over the graph, and `runs` for the rest of a forward that has
// run a backward of its own (autograd::grad in MAML).
void FullyShardedUnit::release() {
  if (gathering)
    gather();
  if (kept || runs)
    return;
  here = false;
  if (flat.storage().nbytes() > 0)
    release_memory();
}

void FullyShardedUnit::prefetch(FullyShardedUnit* next) {
  if (next != nullptr && owner.lock()->options.prefetch)
    next->start_gather();
}

// A forward may lie inside another; only the outermost one begins the set's.
void FullyShardedUnit::before_forward() {
  const auto set = owner.lock();
  if (set->whole) {
    throw failed_precondition(
        "fully sharded: expected a forward after whole_parameters(), got one inside (rank ",
        group.job_rank(),
        "); call the bare module there");
  }
  if (set->depth == 0) {
    set->refuse_lbfgs();
    set->begin_forward();
  }
  if (const auto wrapped = module.lock(); wrapped && set->depth == 0)
    set->warn_of_late_parameters(*wrapped);
  if (at::GradMode::is_enabled())
    set->guard_memory(true);
  if (!parameters.empty())
    arrange_forward();
  runs = true;
  ++set->depth;
}

// What is computed again in a backward comes in the backward's order, which prefetches by itself.
void FullyShardedUnit::arrange_forward() {
  const auto set = owner.lock();
  require_same_trained();
  if (!set->graph.expired())
    return gather();
  if (set->last_forward != nullptr)
    set->last_forward->next_forward = this;
  set->last_forward = this;
  gather_in_forward();
  prefetch(next_forward);
}

// The other ranks may have run their last step, and left, or do something else. In training a rank
// that is away has failed, so that only its failure is told.
void FullyShardedUnit::gather_in_forward() {
  try {
    gather();
  } catch (const Error& error) {
    const bool are_elsewhere = error.code() == ErrorCode::invalid_argument;
    const bool are_away = !at::GradMode::is_enabled() &&
                          is_one_of(error.code(), ErrorCode::peer_failed, ErrorCode::timeout);
    if (!are_elsewhere && !are_away)
      throw;
    throw Error(error.code(),
                error.message(),
                " (fully sharded: expected every rank in this forward, which is collective: to "
                "evaluate on some ranks only, call the bare module there while "
                "whole_parameters() lives on all)");
  }
}

// What is frozen later gets no gradient any more. For the other way there is neither a hook nor a
// part.
void FullyShardedUnit::require_same_trained() const {
  for (const size_t i : indices_of(parameters)) {
    if (was_trained[i] || !parameters[i].requires_grad())
      continue;
    throw failed_precondition(
        "fully sharded: expected parameters that were frozen when they were wrapped to stay "
        "frozen, got '",
        names[i],
        "', which requires a gradient (rank ",
        group.job_rank(),
        "); unfreeze before wrap(), and freeze afterwards");
  }
}

// The memory of the parameters goes after the forward, and a backward is noticed at the outputs.
void FullyShardedUnit::check_outputs(const ForwardOutputs& outputs) const {
  const auto refuse = [&](const char* got, const char* next) {
    throw failed_precondition(
        "fully sharded: expected a forward that returns what it has computed, got ",
        got,
        " from the module of '",
        names[0],
        "' (rank ",
        group.job_rank(),
        "); ",
        next);
  };
  if (outputs.empty() && trained > 0 && at::GradMode::is_enabled())
    refuse(
        "no tensors that can be seen",
        "give the struct a member tensors() that returns std::tie of its tensors, or call it under "
        "NoGradGuard");
  const c10::StorageImpl* const memory = flat.storage().unsafeGetStorageImpl();
  for (const ForwardOutput& output : outputs) {
    if (output.tensor.has_storage() && output.tensor.storage().unsafeGetStorageImpl() == memory)
      refuse("a parameter, or a view of one", "return its clone()");
  }
}

// The gathered memory goes, and with it what was written there. (An embedding with max_norm scales
// its rows anew in each forward.)
void FullyShardedUnit::require_unwritten() const {
  for (const size_t i : indices_of(parameters)) {
    if (parameters[i]._version() == gathered_versions[i] ||
        renormalized.contains(parameters[i].unsafeGetTensorImpl()))
      continue;
    throw failed_precondition(
        "fully sharded: expected a forward that leaves parameters as they are, got a change of '",
        names[i],
        "', which would be lost with the gathered memory (rank ",
        group.job_rank(),
        "); change it while whole_parameters() lives, compute with a changed copy of it, or leave "
        "what a forward updates, such as a teacher, out of the wrapped modules");
  }
}

void FullyShardedUnit::after_forward(const std::vector<ForwardOutput>& outputs,
                                     uint64_t first_node) {
  runs = false;
  if (parameters.empty())
    return;
  check_outputs(outputs);
  require_unwritten();
  const bool to_backward =
      std::any_of(outputs.begin(), outputs.end(), [](const ForwardOutput& output) {
        return at::GradMode::is_enabled() && output.tensor.grad_fn() != nullptr;
      });
  if (to_backward)
    watch_backward(outputs, first_node);
  // A backward begins with the outermost module, and what is computed again in a backward is used
  // there.
  const bool again = !owner.lock()->graph.expired();
  if (!again && !(outer && to_backward))
    release();
}

// The hooks hold the unit weakly, since a graph may outlive it.
void FullyShardedUnit::watch_backward(const ForwardOutputs& outputs, uint64_t first_node) {
  const std::weak_ptr<FullyShardedUnit> weak = weak_from_this();
  const auto use = std::make_shared<FullyShardedUse>();
  Tensors watched;
  for (const ForwardOutput& output : outputs) {
    if (!output.tensor.grad_fn())
      continue;
    watched.push_back(output.tensor);
    output.tensor.register_hook([weak, use](const Tensor&) {
      if (const auto unit = weak.lock())
        unit->on_output(*use);
    });
  }
  use->exits = watch_graph_exits(watched, first_node, [weak, use] {
    if (const auto unit = weak.lock())
      unit->on_exit(*use);
  });
}

// The thread of the backward runs it. Several outputs of one use count once in a backward.
void FullyShardedUnit::on_output(FullyShardedUse& use) {
  const auto set = owner.lock();
  if (!set)
    return;
  before_backward();
  if (use.graph == set->graphs)
    return;
  use.graph = set->graphs;
  use.left = use.exits;
  ++open_uses;
}

// Inputs may have gradients to come when those of all parameters are there: they too read
// parameters.
void FullyShardedUnit::on_exit(FullyShardedUse& use) {
  const auto set = owner.lock();
  if (!set || use.graph != set->graphs || use.left == 0 || --use.left > 0)
    return;
  --open_uses;
  release_when_done();
}

// The thread of the backward runs it, from whichever hook comes first.
void FullyShardedUnit::before_backward() {
  const auto set = owner.lock();
  if (!set)
    return;
  set->begin_backward();
  if (set->makes_graph)
    kept = true;
  if (in_backward)
    return gather();
  in_backward = true;
  arrived = 0;
  awaited = gradients_of_graph();
  if (set->last_backward != nullptr)
    set->last_backward->next_backward = this;
  set->last_backward = this;
  gather();
  prefetch(next_backward);
}

// autograd::grad, and a backward of some inputs, add to none or not to all.
size_t FullyShardedUnit::gradients_of_graph() const {
  const auto* const nodes = torch::autograd::get_current_graph_task_exec_info();
  const auto is_added_to = [&](const Tensor& parameter) {
    if (!parameter.requires_grad())
      return false;
    if (nodes == nullptr || nodes->empty())
      return true;
    const auto* const found =
        value_at(*nodes, torch::autograd::impl::grad_accumulator(parameter).get());
    return found != nullptr && found->needed_;
  };
  return std::ranges::count_if(parameters, is_added_to);
}

// The thread of the backward runs it once a gradient has been added to the parameter's.
void FullyShardedUnit::on_gradient(size_t index) {
  const auto set = owner.lock();
  if (!set)
    return;
  if (!in_backward)
    before_backward();
  set->adds = true;
  if (set->reduces) {
    gradients->take(index);
  } else if (gradients->keep(index)) {
    stand_ins->stand_for(index);
  }
  if (++arrived != awaited)
    return;
  release_when_done();
  if (set->reduces)
    set->reduce(*this);
}

// Nothing of this backward reads the parameters any more once all outputs, exits and gradients have
// come.
void FullyShardedUnit::release_when_done() {
  if (in_backward && open_uses == 0 && arrived == awaited)
    release();
}

void FullyShardedUnit::forget_backward() {
  in_backward = false;
  open_uses = 0;
}

// A gradient that somebody has cleared in the module is cleared in the parts too. guard_parts()
// comes after it.
void FullyShardedUnit::clear_parts() {
  unreduced->lift();
  for (const size_t cleared : stand_ins->take_cleared()) {
    gradients->forget(cleared);
    for (const size_t p : indices_of(pieces))
      if (pieces[p].parameter == cleared)
        tensors[p].mutable_grad().reset();
  }
}

// A step of the optimizer would leave out what no_sync() has added up.
void FullyShardedUnit::guard_parts() {
  if (holds_whole_gradients())
    unreduced->put();
}

// Frozen parameters get no gradient, and so no hook.
void FullyShardedUnit::hang_hooks() {
  const Indices places = filtered_indices<size_t>(
      parameters.size(), [&](size_t i) { return parameters[i].requires_grad(); });
  hooks.hang(filtered(parameters, &Tensor::requires_grad),
             [this, places](size_t i) { on_gradient(places[i]); });
}

// All ranks call it together. The versions tell at the end whether a value was changed.
void FullyShardedUnit::make_whole() {
  const NoGradGuard no_grad;
  kept = false;
  release();
  take_replaced();
  whole = at::empty({layout.length()}, part.options());
  {
    const CallNumber of_this_unit(number);
    group.all_gather(whole, part);
  }
  require_expected(whole);
  versions.clear();
  for (const size_t i : indices_of(parameters)) {
    parameters[i].set_data(layout.place(whole, i));
    versions.push_back(parameters[i]._version());
  }
}

// The end of whole_parameters(), in a destructor, so it throws nothing. It notes hashes of changed
// values, which the next gather compares.
void FullyShardedUnit::take_parts() {
  const NoGradGuard no_grad;
  const Tensor before = kept_part();
  bool changed = !part.equal(layout.part_of(whole, group.rank()));
  for (const size_t i : indices_of(parameters))
    changed |=
        !lies_at(parameters[i], layout.place(whole, i)) || parameters[i]._version() != versions[i];
  for (size_t i = 0; changed && i < parameters.size(); ++i)
    expect_gathered(i, parameters[i]);
  divide_whole();
  if (changed)
    expected_part = hash_of_bits(part);
  note_new_part(before);
}

// The parameters become views of the flat buffer again, and their values go to the parts. Values
// that torch::load has put beside the buffer are copied; of another shape they stay, and
// take_replaced() refuses them.
void FullyShardedUnit::divide_whole() {
  for (const size_t i : indices_of(parameters)) {
    const Tensor place = layout.place(whole, i);
    if (parameters[i].sizes() != place.sizes())
      continue;
    if (!lies_at(parameters[i], place))
      place.copy_(parameters[i]);
    parameters[i].set_data(places[i]);
  }
  part.copy_(layout.part_of(whole, group.rank()));
  whole.reset();
  hang_hooks();  // another type has other accumulators
}

// torch::load and others give parameters memory of their own: what is in it goes to the parts.
void FullyShardedUnit::take_replaced() {
  const NoGradGuard no_grad;
  bool any = false;
  Tensor before;
  for (const size_t i : indices_of(parameters)) {
    if (lies_at(parameters[i], places[i]))
      continue;
    require_same_place("fully sharded", parameters[i], places[i], group);
    require_same_type(i);
    if (!std::exchange(any, true))
      before = kept_part();
    expect_gathered(i, parameters[i]);
    for (const size_t p : indices_of(pieces)) {
      if (pieces[p].parameter == i)
        tensors[p].copy_(
            parameters[i].detach().reshape({-1}).narrow(0, pieces[p].begin, pieces[p].length));
    }
    parameters[i].set_data(places[i]);
  }
  if (!any)
    return;
  expected_part = hash_of_bits(part);
  note_new_part(before);
  hang_hooks();
}

// torch::load takes a file's bytes for values of the parameter's type, whatever theirs is.
void FullyShardedUnit::require_same_type(size_t parameter) const {
  const Tensor& loaded = parameters[parameter];
  const size_t bytes_of_parts = loaded.numel() * part.element_size();
  if (loaded.scalar_type() == part.scalar_type() || loaded.storage_offset() != 0 ||
      loaded.storage().nbytes() != bytes_of_parts)
    return;
  throw failed_precondition("fully sharded: expected new values of '",
                            names[parameter],
                            "' as ",
                            toString(part.scalar_type()),
                            " while whole_parameters() lives, got the bytes of such as ",
                            toString(loaded.scalar_type()),
                            " (rank ",
                            group.job_rank(),
                            "); call torch::load while whole_parameters() lives");
}

// New values must be every rank's. Where they are not, what is gathered next is nobody's.
void FullyShardedUnit::expect_gathered(size_t parameter, const Tensor& values) {
  expected[parameter] = hash_of_bits(values.detach().to(flat.scalar_type()));
}

// The part before new values, for the replicas of this rank: they have parts with the same values.
Tensor FullyShardedUnit::kept_part() const {
  const auto set = owner.lock();
  const bool has_replicas = set && set->options.replicate_group;
  return has_replicas && !part_of_replicas.defined() ? part.clone() : part_of_replicas;
}

// A program may swap averages in, and out again, on one host alone.
void FullyShardedUnit::note_new_part(const Tensor& before) {
  const bool is_new = before.defined() && !part.equal(before);
  part_of_replicas = is_new ? before : Tensor();
}

// With the next reduction.
void FullyShardedUnit::tell_replicas() {
  if (std::exchange(part_of_replicas, {}).defined())
    owner.lock()->new_parts.add(hash_of_bits(part));
}

// Says nothing of parts that have changed since, as by a step.
void FullyShardedUnit::require_expected(const Tensor& gathered) {
  const auto hashes = std::exchange(expected, {});
  if (hashes.empty() || pieces.empty() || hash_of_bits(part) != expected_part)
    return;
  for (const auto& [parameter, hash] : hashes) {
    if (hash_of_bits(layout.place(gathered, parameter).to(flat.scalar_type())) == hash)
      continue;
    throw failed_precondition(
        "fully sharded: expected new values of parameters to be the same on every "
        "rank, got others of '",
        names[parameter],
        "' elsewhere than here (rank ",
        group.job_rank(),
        "); load the same file on all ranks");
  }
}

// It asks for gradients that were added up without a reduction.
bool FullyShardedUnit::holds_whole_gradients() const {
  for (const size_t i : indices_of(parameters))
    if (parameters[i].requires_grad() &&
        (gradients->keeps(i) || (parameters[i].grad().defined() && !stand_ins->stands_in(i))))
      return true;
  return false;
}

}  // namespace muster::detail
