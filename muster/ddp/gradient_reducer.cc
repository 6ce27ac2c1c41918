#include "muster/ddp/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/failure.h"
#include "muster/comm/torch_compat.h"
#include "muster/ddp/model_description.h"
#include "muster/ddp/output_sink.h"
#include "muster/ddp/reducer_setup.h"
#include "muster/ddp/step_check.h"
#include "muster/ddp/trained_parameters.h"

namespace muster {

namespace ddp {

// What the next backward is for. Set by forwards, checked by the hooks: a backward that no forward announced
// would leave gradients local without a word.
enum class Expected { nothing, local, reduction };

}  // namespace ddp

namespace {

using ddp::Expected;

constexpr size_t kBroadcastBytes =
    size_t{250} * 1024 * 1024;  // as Python's DDP broadcasts parameters and buffers

}  // namespace

struct GradientReducer::State : std::enable_shared_from_this<GradientReducer::State> {
  State(std::shared_ptr<torch::nn::Module> model_, ProcessGroup group_, const DdpOptions& options_)
      : model(std::move(model_)), group(std::move(group_)), options(options_), steps(group) {}

  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  void take_model();
  bool follow_model();
  void broadcast(const std::vector<at::Tensor>& tensors);
  std::vector<at::Tensor> buffers() const;

  void build_reducer();
  void watch_gradients();
  void unwatch_gradients();
  void watch_outputs(const std::vector<at::Tensor*>& outputs);
  void on_backward();
  void on_gradient(size_t index);
  void check_arrival(size_t index) const;
  void after_graph();
  void finish_backward();
  void check_all_arrived() const;
  void expect_nothing();
  void replace_views();
  void recover();

  std::shared_ptr<torch::nn::Module> model;
  ProcessGroup group;
  const DdpOptions options;
  StepCheck steps;
  TrainedParameters parameters;
  std::vector<ParameterIdentity> identities;  // of these, as they were
  std::vector<at::Tensor> known;              // all parameters, frozen ones too, whose values the ranks share
  ReducerParts parts;
  std::vector<AutogradNodePtr> accumulators;  // kept alive: a hook on a dead one never fires
  std::vector<uintptr_t> hooks;

  bool reduce = true;               // false inside no_sync
  bool announces = false;           // the forward under way is followed by a reduction
  bool synchronize_buffers = true;  // the last forward was one that reduces

  std::mutex mutex;  // the rest is written by autograd's threads
  Expected expected = Expected::nothing;
  std::vector<bool> arrived;  // which gradients this backward has produced
  bool any_arrived = false;
  bool callback_queued = false;  // set while a backward that may reduce is under way
  bool static_graph_seen = false;
  std::vector<bool> learnt;  // which gradients the static graph's first backward produced
};

namespace {

// Tells the reducer that a parameter's gradient was accumulated; runs before c10d::Reducer's own hook on it.
class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void()> body) : body_(std::move(body)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    body_();
    return outputs;
  }

 private:
  std::function<void()> body_;
};

}  // namespace

void GradientReducer::State::broadcast(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || group.size() == 1) return;
  translate_failures(cat("DistributedDataParallel: broadcast from rank 0 (rank ", group.rank(), ")"), [&] {
    const at::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group.c10d(), tensors, kBroadcastBytes, 0);
  });
}

std::vector<at::Tensor> GradientReducer::State::buffers() const {
  std::vector<at::Tensor> found;
  for (const at::Tensor& buffer : model->buffers()) {
    if (buffer.defined()) found.push_back(buffer.detach());
  }
  return found;
}

// Collective: the models are compared, parameters that are new here become rank 0's.
void GradientReducer::State::take_model() {
  if (options.init_sync) {
    check_same_model(*model, group);
    std::set<const c10::TensorImpl*> old;
    for (const at::Tensor& tensor : known) old.insert(tensor.unsafeGetTensorImpl());
    std::vector<at::Tensor> fresh;
    for (const at::Tensor& tensor : model->parameters()) {
      if (!old.contains(tensor.unsafeGetTensorImpl())) fresh.push_back(tensor.detach());
    }
    if (known.empty()) {
      for (const at::Tensor& buffer : buffers()) fresh.push_back(buffer);
    }
    broadcast(fresh);
  }
  known = model->parameters();
  parameters = trained_parameters(*model);
  identities = trained_identities(*model);
  build_reducer();
}

// Parameters may have been frozen, unfrozen or registered since the last forward. False when none is trained
// now: a GAN's discriminator while the generator trains through it.
bool GradientReducer::State::follow_model() {
  const auto now = trained_identities(*model);
  if (now == identities) return true;
  if (now.empty()) return false;
  const auto is_known = [&](const ParameterIdentity& identity) {
    return std::find(identities.begin(), identities.end(), identity) != identities.end();
  };
  // What is frozen counts as unused.
  if (finds_unused() && std::all_of(now.begin(), now.end(), is_known)) return true;
  take_model();
  return true;
}

void GradientReducer::State::build_reducer() {
  unwatch_gradients();
  parts = {};         // one at a time: it takes its hooks with it
  watch_gradients();  // before the Reducer's own hooks, so that ours run before them
  translate_failures("DistributedDataParallel", [&] { parts = make_reducer(parameters, group, options); });
  replace_views();
  static_graph_seen = false;
}

void GradientReducer::State::unwatch_gradients() {
  for (size_t i = 0; i < hooks.size(); ++i) accumulators[i]->del_post_hook(hooks[i]);
  hooks.clear();
  accumulators.clear();
}

void GradientReducer::State::watch_gradients() {
  arrived.assign(parameters.tensors.size(), false);
  for (size_t i = 0; i < parameters.tensors.size(); ++i) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(parameters.tensors[i]));
    const std::weak_ptr<State> weak = weak_from_this();
    hooks.push_back(accumulators.back()->add_post_hook(std::make_unique<GradientHook>([weak, i] {
      if (const auto state = weak.lock()) state->on_gradient(i);
    })));
  }
}

void GradientReducer::State::on_gradient(size_t index) {
  const std::lock_guard lock(mutex);
  if (expected == Expected::nothing) {
    throw Error(ErrorCode::failed_precondition,
                cat("DistributedDataParallel: backward reached '", parameters.names[index],
                    "', but no forward through DistributedDataParallel announced it since the last "
                    "reduction, so this gradient would stay local (rank ",
                    group.rank(),
                    "); sum the losses and call backward once, use no_sync(), or call the wrapped model"));
  }
  if (expected == Expected::reduction) {
    check_arrival(index);
    if (!std::exchange(any_arrived, true)) steps.begin_backward();
  }
  arrived[index] = true;
  on_backward();
}

// What the Reducer would refuse too, but by an index.
void GradientReducer::State::check_arrival(size_t index) const {
  const auto refuse = [&](const char* rule, const char* got, const char* next) {
    throw Error(ErrorCode::failed_precondition,
                cat("DistributedDataParallel: expected ", rule, ", got ", got, " '", parameters.names[index],
                    "' (rank ", group.rank(), "); ", next));
  };
  if (!options.static_graph && arrived[index]) {
    refuse("each parameter's gradient once in a backward", "a second one for",
           "set static_graph for layers that are checkpointed more than once");
  }
  if (static_graph_seen && !learnt[index]) {
    refuse("the first backward's graph with static_graph", "a gradient, which was not in it, for",
           "leave static_graph off for a graph that changes");
  }
}

// Called with the lock held, by the first sign of a backward: an output's gradient, or a parameter's where
// forward's outputs are not known. The callback belongs to the graph that runs now; with an output it is the
// outer one, also when gradients come from a backward inside (checkpointing).
void GradientReducer::State::on_backward() {
  if (expected != Expected::reduction || callback_queued) return;
  callback_queued = true;
  const std::weak_ptr<State> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak] {
    if (const auto state = weak.lock()) state->after_graph();
  });
}

// A leaf is no sign of a backward of this forward, and would keep the hook for ever.
void GradientReducer::State::watch_outputs(const std::vector<at::Tensor*>& outputs) {
  StepCheck::Outputs alive;
  for (const at::Tensor* output : outputs) {
    if (!output->grad_fn()) continue;
    if (!alive && model->is_training()) alive = steps.begin_forward();
    const std::weak_ptr<State> weak = weak_from_this();
    output->register_hook([weak, alive](const at::Tensor&) {
      if (const auto state = weak.lock()) {
        const std::lock_guard lock(state->mutex);
        state->on_backward();
      }
    });
  }
}

// Runs when the graph is done, but before the Reducer's own callback, which was queued later; a callback
// queued here runs after that one.
void GradientReducer::State::after_graph() {
  {
    const std::lock_guard lock(mutex);
    if (!any_arrived) {  // torch::autograd::grad, or a backward that ended before this model's parameters
      callback_queued = false;
      return;
    }
  }
  if (options.static_graph && !static_graph_seen) {
    static_graph_seen = true;
    learnt = arrived;
    parts.reducer->delay_all_reduce();  // the first backward of a static graph only learns the order; without
                                        // this it reduces nothing
  }
  const std::weak_ptr<State> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak] {
    if (const auto state = weak.lock()) state->finish_backward();
  });
}

void GradientReducer::State::finish_backward() {
  check_all_arrived();
  steps.end_backward();
  const std::lock_guard lock(mutex);
  replace_views();
  expect_nothing();
}

void GradientReducer::State::check_all_arrived() const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < arrived.size(); ++i) {
    if (!arrived[i]) missing.push_back(parameters.names[i]);
  }
  const auto refuse = [&](const char* expected_rule, const char* next) {
    throw Error(ErrorCode::failed_precondition,
                cat("DistributedDataParallel: expected ", expected_rule, ", got none for ",
                    join(missing, ", "), " (", missing.size(), " of ", arrived.size(), ", rank ",
                    group.rank(), "), so nothing was reduced; ", next));
  };
  const bool all_needed = !options.find_unused_parameters && !options.static_graph;
  if (all_needed && !missing.empty()) {
    refuse("a gradient for every parameter", "set find_unused_parameters, or freeze them");
  }
  try {
    parts.reducer->check_finalized();
  } catch (const c10::Error&) {
    if (missing.empty()) throw;
    refuse("a gradient for every parameter that forward's outputs lead to",
           "compute the loss from forward's outputs, and call backward once");
  }
}

// Gradients become plain tensors over the buckets' memory: no copy, and zero_grad() works, which throws on
// views.
void GradientReducer::State::replace_views() {
  for (const at::Tensor& parameter : parameters.tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_view()) gradient = gradient.variable_data();
  }
}

void GradientReducer::State::expect_nothing() {
  expected = Expected::nothing;
  callback_queued = false;
  any_arrived = false;
  std::fill(arrived.begin(), arrived.end(), false);
}

// After a backward that an exception cut short. Its all_reduces may still be under way in the buckets, so the
// Reducer gets others, and the gradients, which lie there, are dropped.
void GradientReducer::State::recover() {
  const std::lock_guard lock(mutex);
  if (!callback_queued) return;
  for (const at::Tensor& parameter : parameters.tensors) parameter.mutable_grad().reset();
  build_reducer();
  steps.reset();
  expect_nothing();
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> found;
  std::set<const c10::TensorImpl*> seen;
  for (at::Tensor& tensor : model.parameters()) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(std::move(tensor));
  }
  return found;
}

GradientReducer::GradientReducer(std::shared_ptr<torch::nn::Module> model, ProcessGroup group,
                                 const DdpOptions& options)
    : state_(std::make_shared<State>(std::move(model), std::move(group), options)) {
  State& state = *state_;
  check_placement(*state.model, state.group, options);
  if (trained_identities(*state.model).empty()) {
    throw Error(ErrorCode::invalid_argument,
                "DistributedDataParallel: expected a model with at least one parameter that requires a "
                "gradient, got none");
  }
  state.take_model();
}

GradientReducer::~GradientReducer() {
  state_->unwatch_gradients();
}

void GradientReducer::before_forward() {
  State& state = *state_;
  state.recover();
  state.announces = at::GradMode::is_enabled() && state.reduce && state.follow_model();
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    if (!at::GradMode::is_enabled()) return;
    if (state.announces) state.parts.reducer->prepare_for_forward();
    if (state.parts.reducer->rebuild_buckets()) state.replace_views();
  });
  if (state.options.broadcast_buffers && state.synchronize_buffers) state.broadcast(state.buffers());
}

void GradientReducer::after_forward(const std::vector<at::Tensor*>& outputs) {
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
              "backward, or leave static_graph off"));
    }
    if (state.expected == Expected::nothing) state.expected = Expected::local;
    return;
  }
  if (!state.announces) return;
  if (state.finds_unused() && outputs.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("DistributedDataParallel: expected forward to return tensors, or pairs, tuples, vectors, maps or "
            "optionals of them, with find_unused_parameters, got another type (rank ",
            state.group.rank(),
            "); give it a tensors() that returns std::tie of them, or leave find_unused_parameters off"));
  }
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    std::vector<at::Tensor> tensors;
    if (state.finds_unused()) {
      for (const at::Tensor* output : outputs) tensors.push_back(*output);
    }
    state.parts.reducer->prepare_for_backward(tensors);
    if (state.finds_unused()) join_outputs(outputs);
  });
  state.expected = Expected::reduction;
  std::fill(state.arrived.begin(), state.arrived.end(), false);
  state.watch_outputs(outputs);
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
