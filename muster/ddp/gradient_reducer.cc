#include "muster/ddp/gradient_reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <mutex>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/comm/failure.h"
#include "muster/comm/torch_compat.h"
#include "muster/ddp/model_description.h"

namespace muster {

namespace ddp {

// What the next backward is for. Set by forwards, checked by the hooks: a backward that no forward announced
// would leave gradients local without a word.
enum class Expected { nothing, local, reduction };

struct Parameters {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  std::vector<bool> sparse;  // gradients arrive as sparse tensors
};

}  // namespace ddp

namespace {

using ddp::Expected;
using ddp::Parameters;

constexpr size_t kBroadcastBytes =
    size_t{250} * 1024 * 1024;  // as Python's DDP broadcasts parameters and buffers
constexpr double kMiB = 1024 * 1024;

// Trained parameters in registration order, each once (shared ones have several names).
Parameters trained_parameters(const torch::nn::Module& model) {
  std::set<const c10::TensorImpl*> sparse;
  for (const auto& module : model.modules()) {
    if (const auto* embedding = module->as<torch::nn::Embedding>();
        embedding && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = module->as<torch::nn::EmbeddingBag>(); bag && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  }
  Parameters found;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : model.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    found.tensors.push_back(tensor);
    found.names.push_back(item.key());
    found.sparse.push_back(sparse.contains(tensor.unsafeGetTensorImpl()));
  }
  return found;
}

void check_placement(const torch::nn::Module& model, const ProcessGroup& group, const DdpOptions& options) {
  const c10::Device device = group.device();
  const bool right_id =
      options.device_ids.size() == 1 && device.is_cuda() && options.device_ids[0] == device.index();
  if (!options.device_ids.empty() && !right_id) {
    std::vector<int> ids(options.device_ids.begin(), options.device_ids.end());
    throw Error(
        ErrorCode::invalid_argument,
        cat("DistributedDataParallel: expected device_ids empty or this rank's device, got [",
            join(ids, ", "), "] on ", device.str(), " (rank ", group.rank(), "); leave device_ids empty"));
  }
  for (const auto& item : model.named_parameters()) {
    if (item.value().device() == device) continue;
    throw Error(
        ErrorCode::invalid_argument,
        cat("DistributedDataParallel: expected parameter '", item.key(), "' on ", device.str(), ", got ",
            item.value().device().str(), " (rank ", group.rank(), "); call model->to(ctx.device()) first"));
  }
}

std::unique_ptr<c10d::Reducer> make_reducer(const Parameters& parameters, ProcessGroup& group,
                                            const DdpOptions& options) {
  const auto cap = static_cast<int64_t>(options.bucket_cap_mb.value_or(25) * kMiB);
  const int64_t first_cap = options.bucket_cap_mb ? cap : c10d::kDefaultFirstBucketBytes;
  // One bucket for the first iteration; the Reducer cuts it up in the order in which gradients really came.
  std::vector<size_t> limits{std::numeric_limits<int64_t>::max()};
  if (options.find_unused_parameters && !options.static_graph) {
    limits = options.bucket_cap_mb
                 ? std::vector<size_t>{static_cast<size_t>(cap)}
                 : std::vector<size_t>{static_cast<size_t>(first_cap), static_cast<size_t>(cap)};
  }
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters.tensors, limits, parameters.sparse));
  std::reverse(buckets.begin(), buckets.end());  // backward reaches the last parameters first
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < parameters.names.size(); ++i) names[i] = parameters.names[i];
  // Buckets in the memory that all ranks see: reduced there, not copied.
  if (group.backend().starts_with("shm")) ::setenv("DDP_DISABLE_COMM_MEM", "0", 0);
  auto reducer = std::make_unique<c10d::Reducer>(
      parameters.tensors, buckets, group.c10d(), parameters.sparse, cap, options.find_unused_parameters,
      options.gradient_as_bucket_view, names, first_cap, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  if (options.static_graph) reducer->set_static_graph();
  return reducer;
}

}  // namespace

struct GradientReducer::State : std::enable_shared_from_this<GradientReducer::State> {
  State(std::shared_ptr<torch::nn::Module> model_, ProcessGroup group_, const DdpOptions& options_)
      : model(std::move(model_)), group(std::move(group_)), options(options_) {}

  void broadcast(const std::vector<at::Tensor>& tensors);
  void build_reducer();
  void watch_gradients();
  void unwatch_gradients();
  void watch_output(const at::Tensor& output);
  void on_backward();
  void on_gradient(size_t index);
  void after_graph();
  void finish_backward();
  void replace_views();
  void recover();
  std::vector<at::Tensor> buffers() const;

  std::shared_ptr<torch::nn::Module> model;
  ProcessGroup group;
  const DdpOptions options;
  Parameters parameters;
  std::unique_ptr<c10d::Reducer> reducer;
  std::vector<AutogradNodePtr> accumulators;  // kept alive: a hook on a dead one never fires
  std::vector<uintptr_t> hooks;

  bool reduce = true;               // false inside no_sync
  bool synchronize_buffers = true;  // the last forward was one that reduces

  std::mutex mutex;  // the rest is written by autograd's threads
  Expected expected = Expected::nothing;
  std::vector<bool> arrived;     // which gradients this backward has produced
  bool callback_queued = false;  // set while a backward that reduces is under way
  bool static_graph_seen = false;
};

namespace {

// Tells the reducer that a parameter's gradient was accumulated; runs after c10d::Reducer's own hook on it.
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

void GradientReducer::State::build_reducer() {
  unwatch_gradients();
  reducer.reset();  // one at a time: it takes its hooks with it
  translate_failures("DistributedDataParallel", [&] { reducer = make_reducer(parameters, group, options); });
  replace_views();
  watch_gradients();  // after the Reducer's own hooks, so that ours run after them
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
                    "reduction, so this "
                    "gradient would stay local (rank ",
                    group.rank(),
                    "); sum the losses and call backward once, use no_sync(), or call the wrapped model"));
  }
  arrived[index] = true;
  on_backward();
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

void GradientReducer::State::watch_output(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  const std::weak_ptr<State> weak = weak_from_this();
  output.register_hook([weak](const at::Tensor&) {
    if (const auto state = weak.lock()) {
      const std::lock_guard lock(state->mutex);
      state->on_backward();
    }
  });
}

// Runs when the graph is done, but before the Reducer's own callback, which was queued later; a callback
// queued here runs after that one.
void GradientReducer::State::after_graph() {
  if (options.static_graph && !static_graph_seen) {
    static_graph_seen = true;
    reducer->delay_all_reduce();  // the first backward of a static graph only learns the order; without this
                                  // it reduces nothing
  }
  const std::weak_ptr<State> weak = weak_from_this();
  torch::autograd::Engine::get_default_engine().queue_callback([weak] {
    if (const auto state = weak.lock()) state->finish_backward();
  });
}

void GradientReducer::State::finish_backward() {
  if (!options.find_unused_parameters && !options.static_graph) {
    std::vector<std::string> missing;
    for (size_t i = 0; i < arrived.size(); ++i) {
      if (!arrived[i]) missing.push_back(parameters.names[i]);
    }
    if (!missing.empty()) {
      throw Error(ErrorCode::failed_precondition,
                  cat("DistributedDataParallel: expected a gradient for every parameter, got none for ",
                      join(missing, ", "), " (", missing.size(), " of ", arrived.size(), ", rank ",
                      group.rank(), "), so nothing was reduced; set find_unused_parameters, or freeze them"));
    }
  }
  reducer->check_finalized();
  const std::lock_guard lock(mutex);
  replace_views();
  expected = Expected::nothing;
  callback_queued = false;
  std::fill(arrived.begin(), arrived.end(), false);
}

// Gradients become plain tensors over the buckets' memory: no copy, and zero_grad() works, which throws on
// views.
void GradientReducer::State::replace_views() {
  for (const at::Tensor& parameter : parameters.tensors) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.is_view()) gradient = gradient.variable_data();
  }
}

// After a backward that an exception cut short, the Reducer refuses everything until it is reset.
void GradientReducer::State::recover() {
  const std::lock_guard lock(mutex);
  if (!callback_queued) return;
  if (options.static_graph && !static_graph_seen) {
    build_reducer();  // it has learnt half a graph, and reset_state() does not unlearn
  } else {
    reducer->reset_state();
  }
  expected = Expected::nothing;
  callback_queued = false;
  std::fill(arrived.begin(), arrived.end(), false);
}

GradientReducer::GradientReducer(std::shared_ptr<torch::nn::Module> model, ProcessGroup group,
                                 const DdpOptions& options)
    : state_(std::make_shared<State>(std::move(model), std::move(group), options)) {
  State& state = *state_;
  check_placement(*state.model, state.group, options);
  if (options.init_sync) check_same_model(*state.model, state.group);
  state.parameters = trained_parameters(*state.model);
  if (state.parameters.tensors.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "DistributedDataParallel: expected a model with at least one parameter that requires a "
                "gradient, got none");
  }
  if (options.init_sync) {
    std::vector<at::Tensor> content = state.buffers();
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : state.model->parameters()) all.push_back(parameter.detach());
    all.insert(all.end(), content.begin(), content.end());
    state.broadcast(all);
  }
  state.build_reducer();
}

GradientReducer::~GradientReducer() {
  state_->unwatch_gradients();
}

void GradientReducer::before_forward() {
  State& state = *state_;
  state.recover();
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    if (!at::GradMode::is_enabled()) return;
    if (state.reduce) state.reducer->prepare_for_forward();
    if (state.reducer->rebuild_buckets()) state.replace_views();
  });
  if (state.options.broadcast_buffers && state.synchronize_buffers) state.broadcast(state.buffers());
}

void GradientReducer::after_forward(const std::vector<at::Tensor>& outputs) {
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
  const bool find_unused = state.options.find_unused_parameters && !state.options.static_graph;
  if (find_unused && outputs.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("DistributedDataParallel: expected forward to return tensors, or pairs, tuples, vectors, maps or "
            "optionals of them, with find_unused_parameters, got another type (rank ",
            state.group.rank(), "); return one of those, or leave find_unused_parameters off"));
  }
  translate_failures(cat("DistributedDataParallel: forward on rank ", state.group.rank()), [&] {
    state.reducer->prepare_for_backward(find_unused ? outputs : std::vector<at::Tensor>{});
  });
  state.expected = Expected::reduction;
  std::fill(state.arrived.begin(), state.arrived.end(), false);
  for (const at::Tensor& output : outputs) state.watch_output(output);
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
