#include "muster/parallel/sharded/fully_sharded_unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::detail {

// A weight of a wrapped module that a module outside of it has too would be read without memory there.
FullyShardedModuleView view_of_module(const FullyShardedSet& set, torch::nn::Module& module) {
  FullyShardedModuleView view;
  std::set<const c10::TensorImpl*> seen;
  module.apply([&](const std::string& prefix, torch::nn::Module& inner) {
    view.modules.insert(&inner);
    for (const auto& item : inner.named_parameters(/*recurse=*/false)) {
      const c10::TensorImpl* const which = item.value().unsafeGetTensorImpl();
      const std::string name = prefix.empty() ? item.key() : cat(prefix, ".", item.key());
      const auto owner = set.owners.find(which);
      if (owner != set.owners.end()) {
        view.outer = true;
        if (!owner->second->modules.contains(&inner)) {
          view.wrong = cat("fully sharded: expected parameters that one wrapped module alone has, got '",
                           name, "', which is tied to one that was wrapped before (rank ",
                           set.group.job_rank(), "); wrap one module that holds both, and neither of them");
        }
      } else if (seen.insert(which).second) {
        view.parameters.push_back(item.value());
        view.names.push_back(name);
      }
    }
  });
  const auto has_it = [&](const auto& unit) { return unit->modules.contains(&module); };
  if (view.parameters.empty() &&
      (std::any_of(set.units.begin(), set.units.end(), has_it) ||
       std::any_of(set.without_parameters.begin(), set.without_parameters.end(), has_it)))
    view.wrong = cat(
        "fully sharded: expected a module whose parameters are not wrapped, got one that is wrapped already "
        "or lies in one that is (rank ",
        set.group.job_rank(), "); wrap inner modules first, each once");
  return view;
}

FullyShardedUnit::FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_,
                                   FullyShardedModuleView module)
    : owner(set_),
      group(set_->group),
      parameters(std::move(module.parameters)),
      names(std::move(module.names)),
      modules(std::move(module.modules)),
      layout(parameters, group.size()),
      outer(module.outer) {
  if (parameters.empty()) return;
  const at::NoGradGuard no_grad;
  const FullyShardedOptions& options = set_->options;
  for (const at::Tensor& parameter : parameters) was_trained.push_back(parameter.requires_grad());
  for (const bool is_trained : was_trained) trained += is_trained ? 1 : 0;
  frozen = trained != parameters.size();
  whole = flatten_parameters(layout, parameters);
  flat = at::empty({layout.length()},
                   whole.options().dtype(options.compute_dtype.value_or(whole.scalar_type())));
  for (size_t i = 0; i < parameters.size(); ++i) places.push_back(layout.place(flat, i));
  flat.storage().unsafeGetStorageImpl()->reset();
  part = at::empty({layout.part}, whole.options());
  pieces = layout.pieces(group.rank());
  for (const FlatPiece& piece : pieces)
    tensors.push_back(part.narrow(0, piece.at, piece.length).detach().requires_grad_());
  gradients = std::make_unique<ScatteredGradients>(parameters, layout, group, options.replicate_group,
                                                   options.reduce_dtype.value_or(whole.scalar_type()));
  take_parts();
}

// Autograd keeps the storage, and finds the memory that is in it at backward.
void FullyShardedUnit::start_gather() {
  if (here || gathering) return;
  const at::NoGradGuard no_grad;
  const auto set = owner.lock();
  c10::StorageImpl& storage = *flat.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(flat.numel()) * flat.element_size();
  {
    const c10::OptionalDeviceGuard device(flat.device());
    storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  }
  storage.set_nbytes(bytes);
  gathering = group.all_gather_async(flat, part.to(flat.scalar_type()));
  set->traffic.gathered += static_cast<int64_t>(bytes);
}

void FullyShardedUnit::gather() {
  if (here) return;
  start_gather();
  Work work = *gathering;
  gathering.reset();
  work.wait();
  here = true;
}

void FullyShardedUnit::release() {
  if (gathering) gather();
  if (!here) return;
  flat.storage().unsafeGetStorageImpl()->reset();
  here = false;
}

void FullyShardedUnit::prefetch(FullyShardedUnit* next) {
  if (next != nullptr && owner.lock()->options.prefetch) next->start_gather();
}

void FullyShardedUnit::before_forward() {
  const auto set = owner.lock();
  if (set->whole) {
    throw Error(ErrorCode::failed_precondition,
                cat("fully sharded: expected a forward after whole_parameters(), got one inside (rank ",
                    group.job_rank(), "); call the bare module there"));
  }
  if (set->depth == 0) set->begin_forward();
  if (!parameters.empty()) arrange_forward();
  ++set->depth;
}

// What is computed again in a backward comes in the backward's order, which prefetches by itself.
void FullyShardedUnit::arrange_forward() {
  const auto set = owner.lock();
  require_same_trained();
  if (!set->graph.expired()) return gather();
  if (set->last_forward != nullptr) set->last_forward->next_forward = this;
  set->last_forward = this;
  gather();
  prefetch(next_forward);
}

// What is frozen later gets no gradient any more. For the other way there is neither a hook nor a part.
void FullyShardedUnit::require_same_trained() const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (was_trained[i] || !parameters[i].requires_grad()) continue;
    throw Error(ErrorCode::failed_precondition,
                cat("fully sharded: expected parameters that were frozen when they were wrapped to stay "
                    "frozen, got '",
                    names[i], "', which requires a gradient (rank ", group.job_rank(),
                    "); unfreeze before wrap(), and freeze afterwards"));
  }
}

// The memory of the parameters goes after the forward, and a backward is noticed at the outputs.
void FullyShardedUnit::check_outputs(const std::vector<ForwardOutput>& outputs) const {
  const auto refuse = [&](const char* got, const char* next) {
    throw Error(ErrorCode::failed_precondition,
                cat("fully sharded: expected a forward that returns what it has computed, got ", got,
                    " from the module of '", names[0], "' (rank ", group.job_rank(), "); ", next));
  };
  if (outputs.empty() && trained > 0 && at::GradMode::is_enabled())
    refuse("no tensors that can be seen",
           "give the struct a member tensors() that returns std::tie of its tensors, or call it under "
           "NoGradGuard");
  for (const ForwardOutput& output : outputs) {
    if (output.tensor.has_storage() && output.tensor.storage().is_alias_of(flat.storage()))
      refuse("a parameter, or a view of one", "return its clone()");
  }
}

void FullyShardedUnit::after_forward(const std::vector<ForwardOutput>& outputs) {
  if (parameters.empty()) return;
  check_outputs(outputs);
  bool to_backward = false;
  if (at::GradMode::is_enabled()) {
    const std::weak_ptr<FullyShardedUnit> weak = weak_from_this();
    for (const ForwardOutput& output : outputs) {
      if (!output.tensor.grad_fn()) continue;
      to_backward = true;
      output.tensor.register_hook([weak](const at::Tensor&) {
        if (const auto unit = weak.lock()) unit->before_backward();
      });
    }
  }
  // A backward begins with the outermost module, and what is computed again in a backward is used there.
  const bool again = !owner.lock()->graph.expired();
  if (!again && !(outer && to_backward)) release();
}

void FullyShardedUnit::before_backward() {
  const auto set = owner.lock();
  if (!set || in_backward) return;
  set->begin_backward();
  in_backward = true;
  arrived = 0;
  if (set->last_backward != nullptr) set->last_backward->next_backward = this;
  set->last_backward = this;
  gather();
  prefetch(next_backward);
}

void FullyShardedUnit::on_gradient(size_t index) {
  const auto set = owner.lock();
  if (!set) return;
  if (!in_backward) before_backward();
  if (set->reduces) gradients->take(index);
  if (++arrived == trained) after_backward();
}

void FullyShardedUnit::after_backward() {
  const auto set = owner.lock();
  if (!frozen) release();
  if (set->reduces) set->reduce(*this);
}

void FullyShardedUnit::hang_hooks() {
  std::vector<at::Tensor> wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad()) continue;
    wanted.push_back(parameters[i]);
    places.push_back(i);
  }
  hooks.hang(wanted, [this, places](size_t i) { on_gradient(places[i]); });
}

void FullyShardedUnit::make_whole() {
  const at::NoGradGuard no_grad;
  release();
  take_replaced();
  whole = at::empty({layout.length()}, part.options());
  group.all_gather(whole, part);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(layout.place(whole, i));
}

// What torch::load has put beside it comes back. Throws nothing: of another shape it stays, and
// take_replaced() refuses it.
void FullyShardedUnit::take_parts() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor place = layout.place(whole, i);
    if (parameters[i].sizes() != place.sizes()) continue;
    if (!lies_at(parameters[i], place)) place.copy_(parameters[i]);
    parameters[i].set_data(places[i]);
  }
  part.copy_(whole.narrow(0, layout.part * group.rank(), layout.part));
  whole.reset();
  hang_hooks();  // another type has other accumulators
}

// torch::load and others give parameters memory of their own: what is in it goes to the parts.
void FullyShardedUnit::take_replaced() {
  const at::NoGradGuard no_grad;
  bool any = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (lies_at(parameters[i], places[i])) continue;
    require_same_place("fully sharded", parameters[i], places[i], group);
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (pieces[p].parameter == i)
        tensors[p].copy_(parameters[i].detach().reshape({-1}).narrow(0, pieces[p].begin, pieces[p].length));
    }
    parameters[i].set_data(places[i]);
    any = true;
  }
  if (any) hang_hooks();
}

bool FullyShardedUnit::holds_whole_gradients() const {
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.requires_grad() && parameter.grad().defined();
  });
}

// What an earlier forward has left may be older than the parts.
void FullyShardedSet::begin_forward() {
  last_forward = nullptr;
  if (!graph.expired()) return;  // computed again in a backward
  forget_failed_backward();
  for (const auto& unit : units) {
    unit->release();
    unit->take_replaced();
  }
}

// The callback belongs to the graph that runs now, and goes with it, also when that fails.
void FullyShardedSet::begin_backward() {
  if (!graph.expired()) return;
  forget_failed_backward();
  const auto token = std::make_shared<bool>();
  graph = token;
  const std::weak_ptr<FullyShardedSet> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak, token] {
    if (const auto set = weak.lock()) set->after_graph();
  });
}

void FullyShardedSet::forget_failed_backward() {
  for (const auto& unit : units) {
    unit->gradients->drop();
    unit->in_backward = false;
  }
  under_way = nullptr;
  last_backward = nullptr;
}

// One at a time: it is reduced while the next module's backward computes.
void FullyShardedSet::reduce(FullyShardedUnit& unit) {
  finish_reduction();
  unit.gradients->start();
  traffic.scattered += unit.gradients->bytes();
  under_way = &unit;
}

void FullyShardedSet::finish_reduction() {
  if (under_way == nullptr) return;
  FullyShardedUnit& unit = *under_way;
  under_way = nullptr;
  add_to_pieces(unit.gradients->finish(), unit.pieces, unit.parameters, unit.tensors);
}

void FullyShardedSet::after_graph() {
  for (const auto& unit : units) {
    const bool unfinished = unit->in_backward && unit->arrived < unit->trained;
    if (reduces && (unfinished || unit->holds_whole_gradients())) reduce(*unit);
    unit->in_backward = false;
  }
  finish_reduction();
  for (const auto& unit : units) unit->release();
  graph.reset();
}

}  // namespace muster::detail
