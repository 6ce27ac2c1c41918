#include "muster/parallel/fully_sharded.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/engine.h>

#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/divided_gradients.h"
#include "muster/ddp/gradient_hooks.h"
#include "muster/parallel/flat_layout.h"
#include "muster/parallel/optimizer_parts.h"
#include "muster/parallel/scattered_gradients.h"

namespace muster {

namespace detail {

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
  std::set<const c10::TensorImpl*> sharded;

  bool reduces = true;
  bool whole = false;  // the guard of whole_parameters() lives
  int depth = 0;       // of the forwards that run
  FullyShardedUnit* last_forward = nullptr;
  FullyShardedUnit* last_backward = nullptr;
  FullyShardedUnit* under_way = nullptr;  // its gradients are reduced
  std::weak_ptr<void> graph;              // the backward that runs
  ShardedTraffic traffic;
};

struct FullyShardedUnit : std::enable_shared_from_this<FullyShardedUnit> {
  FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_, std::vector<at::Tensor> parameters_);

  void gather();
  void start_gather();
  void release();
  void prefetch(FullyShardedUnit* next);
  void before_forward();
  void after_forward(const std::vector<ForwardOutput>& outputs);
  void before_backward();
  void on_gradient(size_t index);
  void after_backward();
  void hang_hooks();
  void make_whole();
  void take_parts();

  std::weak_ptr<FullyShardedSet> owner;
  ProcessGroup group;
  std::vector<at::Tensor> parameters;
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

FullyShardedUnit::FullyShardedUnit(const std::shared_ptr<FullyShardedSet>& set_,
                                   std::vector<at::Tensor> parameters_)
    : owner(set_), group(set_->group), parameters(std::move(parameters_)), layout(parameters, group.size()) {
  const at::NoGradGuard no_grad;
  const FullyShardedOptions& options = set_->options;
  for (const at::Tensor& parameter : parameters) trained += parameter.requires_grad() ? 1 : 0;
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
  if (set->last_forward != nullptr) set->last_forward->next_forward = this;
  set->last_forward = this;
  gather();
  prefetch(next_forward);
  ++set->depth;
}

void FullyShardedUnit::after_forward(const std::vector<ForwardOutput>& outputs) {
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
  if (!in_backward && !(outer && to_backward)) release();
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
  whole = at::empty({layout.length()}, part.options());
  group.all_gather(whole, part);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(layout.place(whole, i));
}

void FullyShardedUnit::take_parts() {
  const at::NoGradGuard no_grad;
  part.copy_(whole.narrow(0, layout.part * group.rank(), layout.part));
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_data(places[i]);
  whole.reset();
  hang_hooks();  // another type has other accumulators
}

// What an earlier forward has left may be older than the parts.
void FullyShardedSet::begin_forward() {
  last_forward = nullptr;
  if (!graph.expired()) return;  // computed again in a backward
  forget_failed_backward();
  for (const auto& unit : units) unit->release();
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
    if (unit->in_backward && reduces && unit->arrived < unit->trained) reduce(*unit);
    unit->in_backward = false;
  }
  finish_reduction();
  for (const auto& unit : units) unit->release();
  graph.reset();
}

FullyShardedForward::FullyShardedForward(std::shared_ptr<FullyShardedUnit> unit) : unit_(std::move(unit)) {
  unit_->before_forward();
}

FullyShardedForward::~FullyShardedForward() {
  if (const auto set = unit_->owner.lock()) --set->depth;
}

void FullyShardedForward::finish(const std::vector<ForwardOutput>& outputs) {
  unit_->after_forward(outputs);
}

}  // namespace detail

using detail::FullyShardedSet;
using detail::FullyShardedUnit;

FullySharded::FullySharded(ProcessGroup group, const FullyShardedOptions& options)
    : set_(std::make_shared<FullyShardedSet>(std::move(group), options)) {}

std::shared_ptr<FullyShardedUnit> FullySharded::add(torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  bool outer = false;
  std::string wrong;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!set_->sharded.insert(parameter.unsafeGetTensorImpl()).second) {
      outer = true;
      continue;
    }
    parameters.push_back(parameter);
    if (parameter.scalar_type() != parameters[0].scalar_type()) {
      wrong = cat("fully sharded: expected parameters of one type in a module, got ",
                  c10::toString(parameters[0].scalar_type()), " and ", c10::toString(parameter.scalar_type()),
                  " (rank ", set_->group.job_rank(), "); wrap the modules of each type apart");
    }
  }
  const auto type_of = [](const std::optional<at::ScalarType>& type) {
    return type ? std::string(c10::toString(*type)) : std::string("the parameters'");
  };
  const std::vector<Term> terms = {{"compute_dtype", type_of(set_->options.compute_dtype)},
                                   {"reduce_dtype", type_of(set_->options.reduce_dtype)},
                                   {"prefetch", cat(set_->options.prefetch)}};
  agree_on_parameters("fully sharded", parameters, wrong, terms, set_->group);
  if (set_->options.replicate_group)
    agree_on_parameters("fully sharded", parameters, wrong, terms, *set_->options.replicate_group);
  set_->units.push_back(std::make_shared<FullyShardedUnit>(set_, std::move(parameters)));
  set_->units.back()->outer = outer;
  mark_divided_gradients(set_->units.back()->tensors);
  return {set_, set_->units.back().get()};  // whoever has the module keeps the set
}

std::vector<at::Tensor> FullySharded::parameters() const {
  std::vector<at::Tensor> all;
  for (const auto& unit : set_->units) {
    for (size_t i = 0; i < unit->pieces.size(); ++i)
      if (unit->parameters[unit->pieces[i].parameter].requires_grad()) all.push_back(unit->tensors[i]);
  }
  return all;
}

at::Tensor FullySharded::clip_grad_norm(double max_norm) {
  return clip_sharded_grads(parameters(), max_norm, set_->group);
}

std::shared_ptr<void> FullySharded::no_sync() {
  const bool before = set_->reduces;
  set_->reduces = false;
  return {nullptr, [set = set_, before](void*) { set->reduces = before; }};
}

std::shared_ptr<void> FullySharded::whole_parameters() {
  if (set_->whole) {
    throw Error(ErrorCode::failed_precondition,
                cat("whole_parameters: expected no guard of an earlier call, got one that lives (rank ",
                    set_->group.job_rank(), "); end its scope first"));
  }
  for (const auto& unit : set_->units) unit->make_whole();
  set_->whole = true;
  return {nullptr, [set = set_](void*) {
            set->whole = false;
            for (const auto& unit : set->units) unit->take_parts();
          }};
}

void FullySharded::gather_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain) {
  for (const auto& unit : set_->units)
    gather_optimizer_state({unit->layout, unit->parameters, unit->pieces, unit->tensors}, optimizer, plain,
                           set_->group);
}

void FullySharded::divide_state(torch::optim::Optimizer& optimizer, torch::optim::Optimizer& plain) {
  for (const auto& unit : set_->units)
    divide_optimizer_state({unit->layout, unit->parameters, unit->pieces, unit->tensors}, optimizer, plain);
}

ShardedTraffic FullySharded::traffic() const {
  return set_->traffic;
}

}  // namespace muster
