// The forward side of a reducer. Before a forward it looks whether the model has changed or a
// backward has failed, and builds the c10d::Reducer anew where it has; after the forward it tells
// the Reducer that a backward comes. gradient_backward.cc has the rest of a step.
#include "muster/ddp/gradient_reducer.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/failure.h"
#include "muster/comm/capabilities.h"
#include "muster/ddp/output_sink.h"
#include "muster/ddp/reducer_state.h"
#include "muster/ddp/renormalized.h"

namespace muster {

// clang-format off
// The states of a step. `expected` and `begun` are in reducer_state.h.
//
//   state     expected   begun  begins with                       a gradient that comes         ends with
//   idle      nothing    no     a step that ended well            is refused                    a forward
//   local     local      no     a forward inside no_sync          stays here (`accumulated`)    a forward that reduces
//   awaiting  reduction  no     a forward that reduces            begins the backward           the backward's first sign
//   backward  reduction  yes    on_backward()                     arrives, and is reduced       finish_backward(): idle
//   failed    reduction  yes    an exception in a backward        is refused                    before_forward(): recover()
//
// The Reducer is built anew where the trained parameters change (follow_model), after a backward that has failed
// (recover), and where another bucket size is tried (try_buckets).
// clang-format on

// Follows what has happened to the model's parameters. False when nothing is trained now.
bool GradientReducer::State::follow_model() {
  const auto change = model.look();
  if (change == ReplicatedModel::Change::all_frozen)
    return false;
  const bool newly_shared = as_views && live.shares();
  if (change == ReplicatedModel::Change::none && !newly_shared)
    return true;
  const TrainedParameters before = model.trained();
  steps.meet_in_forward("where parameters have changed", [&] { model.gather(); });
  model.take();
  hooks.remove();
  parts = {};
  model.record();
  drop_local_gradients(before);
  build_reducer();
  return true;
}

// A parameter that was frozen keeps the gradients of this rank's micro-batches, and an optimizer
// would apply them.
void GradientReducer::State::drop_local_gradients(const TrainedParameters& before) const {
  if (!accumulated)
    return;
  const auto& trained = model.trained().tensors;
  Strings dropped;
  for (const size_t i : indices_of(before.tensors)) {
    const Tensor& tensor = before.tensors[i];
    const bool is_trained =
        any_of(trained, [&](const Tensor& other) { return other.is_same(tensor); });
    if (is_trained || !tensor.grad().defined())
      continue;
    tensor.mutable_grad().reset();
    dropped.push_back(before.names[i]);
  }
  if (!dropped.empty() && group.rank() == 0)
    log_warning(
        "DistributedDataParallel: expected parameters to stay trained between no_sync() and "
        "the backward that averages, got '",
        muster::join(dropped, "', '"),
        "' frozen, whose gradients are dropped (rank ",
        group.job_rank(),
        "); freeze after a step");
}

// Two Reducers cannot both have a gradient in their buckets: with another wrapped model that shares
// a parameter both copy. Our hooks are hung before the Reducer hangs its own, so that ours run
// first.
void GradientReducer::State::build_reducer() {
  parts = {};  // the old Reducer takes its hooks with it
  of_backward.reset();
  arrivals =
      GradientArrivals(model.trained().names, model.source().assigned(), options, group.job_rank());
  live.set(model.parameters(), model.trained().tensors, [this](const Tensor& tensor) {
    return model.source().ignores(tensor);
  });
  as_views = options.gradient_as_bucket_view && !live.shares();
  const std::weak_ptr<State> weak = weak_from_this();
  const auto call = [weak](void (State::*on_gradient)(size_t)) {
    return [weak, on_gradient](size_t index) {
      if (const auto state = weak.lock())
        (state.get()->*on_gradient)(index);
    };
  };
  hooks.hang(
      model.trained().tensors, call(&State::on_gradient), call(&State::on_gradient_elsewhere));
  if (!trial)
    trial.emplace(options.bucket_cap_mb, sum_of<size_t>(model.trained().tensors, &Tensor::nbytes));
  translate_failures("DistributedDataParallel", [&] {
    parts = make_reducer(model.trained(), group, options, trial->cap(), as_views);
  });
  trial->begin_buckets();
  ++buckets_made;
  ++reducers_made;
  views.begin(model.trained().tensors.size());
  views.lend(model.trained().tensors);
  static_graph_seen = false;
  order_known = false;
}

// The Reducer does this once, after the first backward. It broadcasts rank 0's order of gradients,
// where nobody sees a rank that does something else: so the ranks meet first.
void GradientReducer::State::rebuild_buckets() {
  if (group.size() > 1 && order_known && parts.reducer->should_rebuild_buckets())
    steps.meet_in_forward("before its buckets are built anew", [&] { group.barrier(); });
  const BucketsInBackendMemory in_backend_memory(group);
  if (!parts.reducer->rebuild_buckets())
    return;
  ++buckets_made;
  views.begin(model.trained().tensors.size());
  views.lend(model.trained().tensors);
  of_backward.reset();
}

// Runs between a backward and the next forward that reduces, on all ranks after the same step.
// Ranks without inputs take no part in it: inside of join() the trial rests.
void GradientReducer::State::try_buckets() {
  if (!trial->has_enough() || join)
    return;
  const auto before = trial->cap().mib();
  if (!trial->next()) {
    const auto medians = trial->medians();
    const Tensor mine = at::tensor(medians, kDouble).unsqueeze(0);
    const Tensor all = at::empty({group.size(), mine.size(1)}, kDouble);
    steps.meet_in_forward("where bucket sizes are chosen", [&] { group.all_gather(all, mine); });
    const auto* values = all.const_data_ptr<double>();
    const std::string chosen = trial->decide({values, values + all.numel()});
    if (group.rank() == 0)
      log_info("DistributedDataParallel: ", chosen);
  }
  if (trial->cap().mib() != before)
    build_reducer();
}

// Starts anew after a backward that an exception cut short. Its all_reduces may still be under way
// in the buckets, so the Reducer gets others, and the gradients, which lie there, are dropped.
// Collective: ranks whose backward has ended as it should are told.
void GradientReducer::State::recover() {
  {
    const Lock lock(mutex);
    if (!begun)
      return;
    waits_for_gradients.reset();
    for (const Tensor& parameter : model.trained().tensors)
      parameter.mutable_grad().reset();
    build_reducer();
    expect_nothing();
    drop_local();
  }
  steps.compare_after_failure();
  if (options.hook)
    options.hook->recover(group);
}

GradientReducer::GradientReducer(ModulePtr model, ProcessGroup group, const DdpOptions& options)
    : GradientReducer(Source{source_of(std::move(model))}, std::move(group), options) {}

GradientReducer::GradientReducer(torch::jit::Module model,
                                 ProcessGroup group,
                                 const DdpOptions& options)
    : GradientReducer(Source{source_of(std::move(model))}, std::move(group), options) {}

GradientReducer::GradientReducer(ModelTensors parameters,
                                 ProcessGroup group,
                                 const DdpOptions& options)
    : GradientReducer(Source{source_of(std::move(parameters))}, std::move(group), options) {}

GradientReducer::GradientReducer(Source source, ProcessGroup group, const DdpOptions& options)
    : state_(std::make_shared<State>(std::move(source.model), std::move(group), options)) {
  State& state = *state_;
  state.model.gather();
  state.model.take();
  state.model.record();
  state.build_reducer();
  warn_of_renormalized("DistributedDataParallel", state.model.source().renormalized(), state.group);
}

GradientReducer::~GradientReducer() {
  state_->hooks.remove();
}

// A forward inside a backward (one that computes again) is not the next step's.
void GradientReducer::before_forward() {
  State& state = *state_;
  const bool records = at::GradMode::is_enabled();
  const bool asks = records && state.reduces;
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (!in_backward)
    state.compute.pause();
  if (records && !in_backward) {
    state.recover();
    state.warn_of_local_step();
  }
  const int root = state.join && !in_backward ? state.meet_in_join(asks) : 0;
  state.forward_reduces = asks && state.follow_model();
  if (state.forward_reduces)
    state.try_buckets();
  if (records)
    state.prepare_forward();
  state.broadcast_buffers_from(root);
  if (state.forward_reduces)
    state.replicas.count(state.model.source());
  if (records && !in_backward)
    state.compute.resume();
}

// An optimizer that steps on gradients of one rank makes the ranks' weights differ, and nobody
// would see it. The weights may have been loaded instead, so it is no error.
void GradientReducer::State::warn_of_local_step() {
  constexpr const char* kNoSync =
      "run the last backward before each step outside of no_sync(), or keep no_sync() over the "
      "step where ranks are to train apart";
  constexpr const char* kGrad =
      "call backward(), which averages the gradients, or average what grad() returns with "
      "all_reduce";
  const Lock lock(mutex);
  if (!local.were_applied())
    return;
  const bool returned = local.were_returned();
  log_warning("DistributedDataParallel: '",
              local.name(),
              "' has changed after ",
              returned ? "torch::autograd::grad" : "a backward inside no_sync()",
              ", whose gradients are this rank's alone (rank ",
              group.job_rank(),
              "); if an optimizer has stepped on them, the ranks' weights differ from here on: ",
              returned ? kGrad : kNoSync);
  local.forget();
  local_step_said = true;
}

// Prepares the Reducer for a forward that builds a graph.
void GradientReducer::State::prepare_forward() {
  translate_failures(cat("DistributedDataParallel: forward on rank ", group.job_rank()), [&] {
    if (forward_reduces)
      parts.reducer->prepare_for_forward();
    rebuild_buckets();
  });
}

// Buffers are broadcast before the first forward after each reduced one, as PyTorch does.
void GradientReducer::State::broadcast_buffers_from(int root) {
  if (!options.broadcast_buffers || !synchronize_buffers)
    return;
  steps.meet_in_forward("at the beginning of a forward", [&] { model.broadcast_buffers(root); });
}

void GradientReducer::after_forward(ForwardOutputs outputs) {
  State& state = *state_;
  state.synchronize_buffers = at::GradMode::is_enabled() && state.reduces;
  if (!at::GradMode::is_enabled())
    return;
  const Lock lock(state.mutex);
  if (!state.reduces) {
    state.after_local_forward(outputs);
  } else if (state.forward_reduces) {
    state.after_reduced_forward(outputs);
  }
}

// The caller holds the lock. The gradients of this forward stay on the rank.
void GradientReducer::State::after_local_forward(const ForwardOutputs& outputs) {
  if (options.static_graph && !static_graph_seen) {
    throw failed_precondition(
        "DistributedDataParallel: expected a first forward that is reduced with "
        "static_graph, got one inside no_sync() (rank ",
        group.job_rank(),
        "): the graph would be learnt wrongly and later gradients stay local; reduce "
        "the first backward (also after parameters were frozen or unfrozen, or a "
        "backward has failed), or leave static_graph off");
  }
  if (!watch_outputs(outputs, Expected::local))
    local_unseen = true;
  if (expected == Expected::nothing)
    expect(Expected::local);
}

// The caller holds the lock. With find_unused_parameters the Reducer follows the graph of the
// outputs, and join_outputs() lets a loss ignore some of them.
void GradientReducer::State::after_reduced_forward(ForwardOutputs& outputs) {
  if (finds_unused() && outputs.empty()) {
    throw invalid_argument(
        "DistributedDataParallel: expected forward to return tensors, or pairs, "
        "tuples, vectors, maps or optionals of them, with find_unused_parameters, got "
        "a result without one that can be seen (rank ",
        group.job_rank(),
        "); give its type a tensors() that returns std::tie of them, or leave "
        "find_unused_parameters off");
  }
  translate_failures(cat("DistributedDataParallel: forward on rank ", group.job_rank()), [&] {
    Tensors tensors;
    if (finds_unused())
      tensors = mapped(outputs, &ForwardOutput::tensor);
    if (finds_unused() && expected == Expected::reduction)
      used_by_last = parameter_uses(tensors, model.trained().tensors);
    parts.reducer->prepare_for_backward(tensors);
    if (finds_unused())
      join_outputs(outputs);
  });
  expect(Expected::reduction);
  awaits_in_join = join.has_value();
  arrivals.clear();
  const auto forward = model.in_training() ? steps.add_forward() : nullptr;
  watch_outputs(outputs, Expected::reduction, forward);
}

// What the Reducer or a hook does on the host in each step, a replay would not do again.
std::string GradientReducer::obstacle_to_graph() const {
  const DdpOptions& options = state_->options;
  const ProcessGroup& group = state_->group;
  if (group.device().is_cuda() && !capabilities_of(group.backend()).on_gpus)
    return cat("the backend ", group.backend());
  if (options.find_unused_parameters)
    return "find_unused_parameters";
  if (options.static_graph)
    return "static_graph";
  if (options.hook)
    return cat("the hook ", options.hook.name());
  if (options.verify_every > 0)
    return "verify_every";
  return options.bucket_cap_mb.is_automatic() ? "BucketCap::automatic()" : "";
}

// The Reducer finds the accumulators of then. Nobody else holds the earlier ones.
void GradientReducer::accumulate_on_this_stream() {
  State& state = *state_;
  state.hooks.remove();
  state.parts = {};
  state.model.record();
  state.build_reducer();
}

uint64_t GradientReducer::num_buckets_made() const {
  return state_->buckets_made;
}

uint64_t GradientReducer::num_reducers_made() const {
  return state_->reducers_made;
}

void GradientReducer::expect_buffers_to_differ() {
  state_->synchronize_buffers = true;
}
void GradientReducer::set_reduce(bool reduces) {
  const Lock lock(state_->mutex);
  if (reduces && !state_->reduces)
    state_->local.accept();
  state_->reduces = reduces;
}
bool GradientReducer::reduces() const {
  return state_->reduces;
}
bool GradientReducer::has_local_gradients() const {
  const Lock lock(state_->mutex);
  return state_->accumulated;
}
double GradientReducer::compute_seconds() const {
  return state_->compute.last();
}
ProcessGroup& GradientReducer::group() {
  return state_->group;
}
const Hook& GradientReducer::hook() const {
  return state_->options.hook;
}
bool GradientReducer::ignores(const Tensor& parameter) const {
  return state_->model.source().ignores(parameter);
}

}  // namespace muster
