#include "muster/ddp/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/failure.h"
#include "muster/ddp/gradient_arrivals.h"
#include "muster/ddp/gradient_hooks.h"
#include "muster/ddp/live_reducers.h"
#include "muster/ddp/output_sink.h"
#include "muster/ddp/reducer_setup.h"
#include "muster/ddp/replicated_model.h"
#include "muster/ddp/step_check.h"

namespace muster {

namespace ddp {

// What the next backward is for. Set by forwards, checked by the hooks: a backward that no forward announced
// would leave gradients local without a word.
enum class Expected { nothing, local, reduction };

}  // namespace ddp

namespace {

using ddp::Expected;

}  // namespace

struct GradientReducer::State : std::enable_shared_from_this<GradientReducer::State> {
  State(std::shared_ptr<torch::nn::Module> module, ProcessGroup group_, const DdpOptions& options_)
      : model(std::move(module), group_, options_),
        group(std::move(group_)),
        options(options_),
        steps(group, options.check_steps) {
    options.hook.take();
  }
  ~State() { options.hook.release(); }

  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  bool follow_model();
  void drop_local_gradients(const TrainedParameters& before) const;
  void build_reducer();
  void rebuild_buckets();
  bool watch_outputs(const std::vector<ForwardOutput>& outputs, Expected of,
                     const std::shared_ptr<StepCheck::Forward>& forward = nullptr);
  void on_backward();
  void on_gradient(size_t index);
  [[noreturn]] void refuse(size_t index, const char* why) const;
  void after_graph();
  void finish_backward();
  void expect(Expected next);
  void expect_nothing();
  void replace_views();
  void recover();

  ReplicatedModel model;
  ProcessGroup group;
  const DdpOptions options;
  StepCheck steps;
  ReducerParts parts;
  GradientHooks hooks;

  LiveReducer live;

  bool reduce = true;               // false inside no_sync
  bool announces = false;           // the forward under way is followed by a reduction
  bool synchronize_buffers = true;  // the last forward was one that reduces
  bool as_views = true;             // gradients are views of the Reducer's buckets

  std::mutex mutex;  // autograd's threads write the rest
  Expected expected = Expected::nothing;
  bool local_unseen = false;  // a local forward had no output that can be watched
  GradientArrivals arrivals;  // of the backward that is reduced
  std::weak_ptr<void> graph;  // the one that runs and has our callback; it holds this as long as it lives
  bool begun = false;         // a backward that is reduced, and has not ended well
  bool accumulated = false;   // gradients lie here that no reduction has made the same on all ranks
  bool static_graph_seen = false;
  bool order_known = false;  // of the gradients: the Reducer cuts its buckets anew
};

// False when nothing is trained now.
bool GradientReducer::State::follow_model() {
  const auto change = model.look();
  if (change == ReplicatedModel::Change::all_frozen) return false;
  const bool newly_shared = as_views && live.shares();
  if (change == ReplicatedModel::Change::none && !newly_shared) return true;
  const TrainedParameters before = model.trained();
  steps.meet("where parameters have changed", [&] { model.gather(); });
  model.take();
  drop_local_gradients(before);
  build_reducer();
  return true;
}

// What was frozen keeps the gradients of this rank's micro-batches, and an optimizer would apply them.
void GradientReducer::State::drop_local_gradients(const TrainedParameters& before) const {
  if (!accumulated) return;
  const auto& trained = model.trained().tensors;
  for (const at::Tensor& tensor : before.tensors) {
    const bool is_trained = std::any_of(trained.begin(), trained.end(),
                                        [&](const at::Tensor& other) { return other.is_same(tensor); });
    if (!is_trained) tensor.mutable_grad().reset();
  }
}

void GradientReducer::State::build_reducer() {
  parts = {};  // the old Reducer takes its hooks with it
  arrivals = GradientArrivals(model.trained().names, options, group.rank());
  live.set(model.parameters(), model.trained().tensors);
  // Two Reducers cannot both have a gradient in their buckets: with another wrapped model both copy.
  as_views = options.gradient_as_bucket_view && !live.shares();
  const std::weak_ptr<State> weak = weak_from_this();
  // Before the Reducer hangs its own there, so that ours run first.
  hooks.hang(model.trained().tensors, [weak](size_t index) {
    if (const auto state = weak.lock()) state->on_gradient(index);
  });
  translate_failures("DistributedDataParallel",
                     [&] { parts = make_reducer(model.trained(), group, options, as_views); });
  replace_views();
  static_graph_seen = false;
  order_known = false;
}

// Once, after the first backward. The Reducer broadcasts rank 0's order, where nobody sees a rank that does
// something else: so the ranks meet first.
void GradientReducer::State::rebuild_buckets() {
  if (group.size() > 1 && order_known && parts.reducer->should_rebuild_buckets())
    steps.meet("before its buckets are built anew", [&] { group.barrier(); });
  if (parts.reducer->rebuild_buckets()) replace_views();
}

void GradientReducer::State::on_gradient(size_t index) {
  const std::lock_guard lock(mutex);
  const bool awaited_by_another = live.shares() && live.another_awaits(model.trained().tensors[index]);
  const bool past_local_outputs = expected == Expected::local && !local_unseen && graph.expired();
  if (expected == Expected::nothing || past_local_outputs) {
    if (awaited_by_another) return;
    refuse(index, past_local_outputs
                      ? "it came from no output of a forward inside no_sync(), and no forward that "
                        "is reduced announced it, so this gradient would stay local"
                      : "no forward through DistributedDataParallel announced it since the last "
                        "reduction, so this gradient would stay local");
  }
  if (expected == Expected::local) {
    accumulated = true;
    return;
  }
  if (as_views && awaited_by_another) {
    throw Error(ErrorCode::failed_precondition,
                cat("DistributedDataParallel: expected all wrapped models that have '", arrivals.name(index),
                    "' before the forwards of their common backward, got one that was wrapped, or was given "
                    "it, after a forward (rank ",
                    group.rank(), "); wrap them first, or set gradient_as_bucket_view = false"));
  }
  on_backward();
  arrivals.check(index);
  arrivals.note(index);
}

void GradientReducer::State::refuse(size_t index, const char* why) const {
  throw Error(ErrorCode::failed_precondition,
              cat("DistributedDataParallel: backward reached '", arrivals.name(index), "', but ", why,
                  " (rank ", group.rank(),
                  "); sum the losses and call backward once, use no_sync(), or call the wrapped model"));
}

// Called with the lock held, by the first sign of a backward: an output's gradient, or a parameter's where
// forward's outputs are not known. The callback belongs to the graph that runs now; with an output it is the
// outer one, also when gradients come from a backward inside (checkpointing).
void GradientReducer::State::on_backward() {
  if (expected == Expected::nothing || !graph.expired()) return;
  if (expected == Expected::reduction) {
    if (arrivals.any()) {
      throw Error(ErrorCode::failed_precondition,
                  cat("DistributedDataParallel: expected a new forward after a backward that has failed, got "
                      "another backward of the one before (rank ",
                      group.rank(), "); run forward again"));
    }
    begun = true;
  }
  const auto token = std::make_shared<bool>();
  graph = token;
  const std::weak_ptr<State> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak, token] {
    if (const auto state = weak.lock()) state->after_graph();
  });
}

// False where there is none that can be watched. A leaf is no sign of a backward of this forward, and would
// keep the hook for ever.
bool GradientReducer::State::watch_outputs(const std::vector<ForwardOutput>& outputs, Expected of,
                                           const std::shared_ptr<StepCheck::Forward>& forward) {
  bool watched = false;
  for (const ForwardOutput& output : outputs) {
    if (!output.tensor.grad_fn()) continue;
    watched = true;
    const std::weak_ptr<State> weak = weak_from_this();
    output.tensor.register_hook([weak, of, forward](const at::Tensor&) {
      const auto state = weak.lock();
      if (!state && of == Expected::local) return;
      if (!state) {
        throw Error(ErrorCode::failed_precondition,
                    "DistributedDataParallel: expected it to live until backward, got one that was destroyed "
                    "after forward, so gradients would stay local; keep it");
      }
      if (forward) forward->reached = true;
      const std::lock_guard lock(state->mutex);
      state->on_backward();
    });
  }
  if (forward) forward->visible = watched;
  return watched;
}

// Runs when the graph is done, but before the Reducer's own callback, which was queued later; a callback
// queued here runs after that one. The Reducer's waits for its all_reduces, where nobody sees a rank that
// does something else: so the ranks meet here first.
void GradientReducer::State::after_graph() {
  {
    const std::lock_guard lock(mutex);
    if (!arrivals.any()) {  // torch::autograd::grad, a backward that ended before this model's parameters, or
                            // a local one
      graph.reset();
      begun = false;
      return;
    }
  }
  arrivals.check_all();
  steps.compare();
  if (options.static_graph && !static_graph_seen) {
    static_graph_seen = true;
    arrivals.learn();
    parts.reducer->delay_all_reduce();  // the first backward of a static graph only learns the order; without
                                        // this it reduces nothing
  }
  const std::weak_ptr<State> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak] {
    if (const auto state = weak.lock()) state->finish_backward();
  });
}

void GradientReducer::State::finish_backward() {
  try {
    parts.reducer->check_finalized();
  } catch (const c10::Error&) {
    arrivals.check_reached();
    throw;
  }
  const std::lock_guard lock(mutex);
  replace_views();
  expect_nothing();
  accumulated = false;
  order_known = true;
}

// Gradients become plain tensors over the buckets' memory: no copy, and zero_grad() works, which throws on
// views.
void GradientReducer::State::replace_views() {
  for (const at::Tensor& parameter : model.trained().tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_view()) gradient = gradient.variable_data();
  }
}

void GradientReducer::State::expect(Expected next) {
  expected = next;
  live.await_backward(next != Expected::nothing);
}

void GradientReducer::State::expect_nothing() {
  expect(Expected::nothing);
  local_unseen = false;
  arrivals.clear();
  graph.reset();
  begun = false;
}

// After a backward that an exception cut short. Its all_reduces may still be under way in the buckets, so the
// Reducer gets others, and the gradients, which lie there, are dropped. Collective: ranks whose backward has
// ended as it should are told.
void GradientReducer::State::recover() {
  {
    const std::lock_guard lock(mutex);
    if (!begun) return;
    for (const at::Tensor& parameter : model.trained().tensors) parameter.mutable_grad().reset();
    build_reducer();
    expect_nothing();
    accumulated = false;
  }
  steps.compare_after_failure();
  if (options.hook) options.hook->recover(group);
}

GradientReducer::GradientReducer(std::shared_ptr<torch::nn::Module> model, ProcessGroup group,
                                 const DdpOptions& options)
    : state_(std::make_shared<State>(std::move(model), std::move(group), options)) {
  State& state = *state_;
  state.model.gather();
  state.model.take();
  state.build_reducer();
}

GradientReducer::~GradientReducer() {
  state_->hooks.remove();
}

void GradientReducer::before_forward() {
  State& state = *state_;
  const bool reduces = at::GradMode::is_enabled() && state.reduce;
  // A forward inside a backward (one that computes again) is not the next step's.
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  if (at::GradMode::is_enabled() && !in_backward) state.recover();
  state.announces = reduces && state.follow_model();
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    if (!at::GradMode::is_enabled()) return;
    if (state.announces) state.parts.reducer->prepare_for_forward();
    state.rebuild_buckets();
  });
  if (state.options.broadcast_buffers && state.synchronize_buffers)
    state.steps.meet("at the beginning of a forward", [&] { state.model.broadcast_buffers(); });
}

void GradientReducer::after_forward(std::vector<ForwardOutput> outputs) {
  State& state = *state_;
  state.synchronize_buffers = at::GradMode::is_enabled() && state.reduce;
  if (!at::GradMode::is_enabled()) return;
  const std::lock_guard lock(state.mutex);
  if (!state.reduce) {
    if (state.options.static_graph && !state.static_graph_seen) {
      throw Error(
          ErrorCode::failed_precondition,
          cat("DistributedDataParallel: expected a first forward that is reduced with static_graph, got one "
              "inside no_sync() (rank ",
              state.group.rank(),
              "): the graph would be learnt wrongly and later gradients stay local; reduce the first "
              "backward (also after parameters were frozen or unfrozen, or a backward has failed), or leave "
              "static_graph off"));
    }
    if (!state.watch_outputs(outputs, Expected::local)) state.local_unseen = true;
    if (state.expected == Expected::nothing) state.expect(Expected::local);
    return;
  }
  if (!state.announces) return;
  if (state.finds_unused() && outputs.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("DistributedDataParallel: expected forward to return tensors, or pairs, tuples, vectors, maps or "
            "optionals of them, with find_unused_parameters, got a result without one that can be seen "
            "(rank ",
            state.group.rank(),
            "); give its type a tensors() that returns std::tie of them, or leave find_unused_parameters "
            "off"));
  }
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    std::vector<at::Tensor> tensors;
    if (state.finds_unused()) {
      for (const ForwardOutput& output : outputs) tensors.push_back(output.tensor);
    }
    state.parts.reducer->prepare_for_backward(tensors);
    if (state.finds_unused()) join_outputs(outputs);
  });
  state.expect(Expected::reduction);
  state.arrivals.clear();
  state.watch_outputs(outputs, Expected::reduction,
                      state.model.in_training() ? state.steps.add_forward() : nullptr);
}

void GradientReducer::set_reduce(bool reduce) {
  state_->reduce = reduce;
}
bool GradientReducer::reduces() const {
  return state_->reduce;
}
ProcessGroup& GradientReducer::group() {
  return state_->group;
}

}  // namespace muster
