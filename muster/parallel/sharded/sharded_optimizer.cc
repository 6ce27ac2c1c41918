// An optimizer of this rank's parts (inner) behind the interface of one of the whole model.
// Parameters lie in flat buffers; a step updates this rank's part of each, and gathers the rest.
// With sharded gradients, hooks collect a bucket's gradients during backward, and reduce it as soon
// as it is complete, in the buckets' order on every rank. What the program does to the model
// between steps, such as clearing gradients or loading values, is noticed and taken over.
#include "muster/parallel/sharded/sharded_optimizer.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/lock.h"
#include "muster/base/mapped.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/number.h"
#include "muster/ddp/bucket_cap.h"
#include "muster/ddp/graph_end.h"
#include "muster/ddp/live_reducers.h"
#include "muster/ddp/parameter_hooks.h"
#include "muster/optim/each_once.h"
#include "muster/optim/parts.h"
#include "muster/parallel/agree.h"
#include "muster/parallel/outside_watch.h"
#include "muster/parallel/sharded/averaged_gradients.h"
#include "muster/parallel/sharded/flat_layout.h"
#include "muster/parallel/sharded/flat_pieces.h"
#include "muster/parallel/sharded/gradient_buffers.h"
#include "muster/parallel/sharded/gradient_stand_ins.h"
#include "muster/parallel/sharded/new_values.h"
#include "muster/parallel/sharded/optimizer_parts.h"
#include "muster/parallel/sharded/sampled_gradients.h"
#include "muster/parallel/sharded/scattered_gradients.h"
#include "muster/parallel/sharded/written_parameters.h"
#include "muster/parallel/tensor_bytes.h"

namespace muster {

// Parameters that are gathered together, and whose gradients are reduced together.
struct ShardBucket {
  explicit ShardBucket(size_t group_) : group(group_) {}
  OptimizerParts parts() const { return {layout, parameters, pieces, tensors, flat.options()}; }

  size_t group;  // of parameters
  Tensors parameters;
  Indices places;  // of the parameters in their group
  FlatLayout layout;
  Tensor flat;
  int64_t gathered_version = 0;  // of flat, when all ranks had the same in it
  std::vector<FlatPiece> pieces;
  Tensors tensors;            // the pieces: this rank's elements, in the flat buffer's memory
  std::vector<bool> trained;  // the parameters that were at construction
  Tensors claimed;            // the same, themselves
  std::unique_ptr<ScatteredGradients> gradients;
  std::unique_ptr<GradientStandIns> stand_ins;  // of the parameters
  std::optional<WrittenParameters> written;
};

namespace {

using ShardGroups = ShardedOptimizerBase::Groups;

// The buckets are in reverse order, in which backward comes to the parameters. A bucket has
// parameters of one group and type.
std::vector<ShardBucket> shard_buckets(const ShardGroups& groups, double bucket_mb) {
  std::vector<ShardBucket> buckets;
  TensorImpls seen;
  for (size_t g = groups.size(); g-- > 0;) {
    double bytes = 0;
    const Tensors& parameters = groups[g].params();
    bool begins = true;
    for (size_t i = parameters.size(); i-- > 0;) {
      const Tensor& parameter = parameters[i];
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
        continue;
      const bool is_full = bytes > bucket_mb * 1048576;
      const bool fits = !begins && !is_full &&
                        parameter.scalar_type() == buckets.back().parameters[0].scalar_type();
      if (!fits) {
        buckets.emplace_back(g);
        bytes = 0;
        begins = false;
      }
      buckets.back().parameters.push_back(parameter);
      buckets.back().places.push_back(i);
      bytes += static_cast<double>(parameter.nbytes());
    }
  }
  return buckets;
}

Tensors shard_all_parameters(const ShardGroups& groups) {
  return concatenated(
      groups, [](const OptimizerParamGroup& group) -> const auto& { return group.params(); });
}

// A rank that has loaded nothing is at another call of the group, which is an error on both.
void require_same_values(const Tensors& replaced, ProcessGroup& group) {
  try {
    agree_on_parameters("sharded optimizer", replaced, {}, {}, group);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    throw Error(error.code(),
                "sharded optimizer: expected all ranks to put the same values into the "
                "parameters before a step, got others or none on some of them (rank ",
                group.job_rank(),
                "); load the same file on every rank: ",
                error.message());
  }
}

// Each rank steps a part of every parameter, so that ranks with other rates would train one matrix
// in two ways.
std::string rates_of(const ShardGroups& groups, const torch::optim::OptimizerOptions& defaults) {
  Strings rates = mapped(groups, [&](const auto& group) {
    return cat((group.has_options() ? group.options() : defaults).get_lr());
  });
  return join(rates, ", ");
}

[[noreturn]] void refuse_archive(const char* call) {
  throw failed_precondition(
      call,
      ": expected an optimizer with its whole state, got a ShardedOptimizer, of whose "
      "state each rank has a part; use gather_state() and divide_state() with a plain "
      "optimizer, or Checkpoints with pieces()");
}

}  // namespace

struct ShardedOptimizerBase::State : std::enable_shared_from_this<ShardedOptimizerBase::State>,
                                     NoCopy {
  State(ProcessGroup group_, const ShardedOptimizerOptions& options_)
      : group(std::move(group_)), options(options_) {}
  ~State();

  void make_buckets(const Groups& groups);
  Groups groups_of_parts(const Groups& groups) const;
  Tensors tensors() const;

  void hang_hooks();
  void make_stand_ins();
  void clear_parts();
  void begin_graph();
  void on_gradient(size_t bucket, size_t parameter);
  void begin_backward();
  void after_graph();
  void end_graph();
  void start_next();
  void finish_oldest();

  void lend_whole_gradients();
  void return_whole_gradients();
  void take_replaced();
  void note_written();
  void require_same_groups(const Groups& groups) const;
  void require_same_type(const Tensor& parameter, const Tensor& place) const;
  void require_same_trained() const;
  void require_unwritten_parts() const;
  void require_sole_claim() const;
  void require_averaged_gradients() const;
  bool has_local_gradient() const;
  void gather();
  void note_versions();

  ProcessGroup group;
  ShardedOptimizerOptions options;
  std::shared_ptr<GradientBuffers> buffers = std::make_shared<GradientBuffers>(group);
  TensorLists given;  // the groups' tensors at construction
  std::vector<ShardBucket> buckets;
  std::unique_ptr<Optimizer> inner;

  bool reduces = true;
  ParameterHooks hooks;
  std::mutex mutex;           // autograd's threads write the rest
  std::weak_ptr<void> graph;  // the backward that runs
  bool reducing = false;      // it reduces
  bool kept_local = false;    // a backward inside of no_sync() has come since the last reduction
  size_t next = 0;            // bucket that is reduced next
  std::deque<size_t> under_way;
  ShardedTraffic traffic;
  SameSamplesWarning same_samples{"ShardedOptimizer"};
  OutsideWatch outside{"ShardedOptimizer"};
  AveragedGradients averaged, averaged_over_replicas;  // where they are whole
  NewValues new_to_group{"sharded optimizer", group};
  NewValues new_to_replicas{"sharded optimizer", group};
};

using ShardsState = ShardedOptimizerBase::State;

// The model's gradients are whole again for whoever trains it next.
ShardsState::~State() {
  for (const ShardBucket& bucket : buckets)
    if (bucket.stand_ins) {
      optim::unmark_divided_gradients(bucket.parameters);
      optim::release_gradients(bucket.claimed);
    }
}

// Every rank makes the same buckets, since the parameters were compared before.
void ShardsState::make_buckets(const Groups& groups) {
  if (!BucketCap(options.bucket_mb).is_size())
    throw invalid_argument("sharded optimizer: expected a size in MiB as bucket_mb, got ",
                           options.bucket_mb,
                           " (rank ",
                           group.job_rank(),
                           "); 25 is the default");
  buckets = shard_buckets(groups, options.bucket_mb);
  for (ShardBucket& bucket : buckets) {
    bucket.layout = FlatLayout(bucket.parameters, group.size());
    // Not in shared memory: a forked child that saves them would see the parent's later steps.
    bucket.flat =
        at::empty({bucket.layout.length()}, bucket.parameters[0].options().requires_grad(false));
    flatten_parameters(bucket.layout, bucket.flat, bucket.parameters);
    bucket.pieces = bucket.layout.pieces(group.rank());
    const Tensor mine = bucket.layout.part_of(bucket.flat, group.rank());
    bucket.tensors = mapped(bucket.pieces, [&](const FlatPiece& piece) {
      return mine.narrow(0, piece.at, piece.length).detach();
    });
    if (!options.gradients)
      continue;
    bucket.trained = mapped(bucket.parameters, &Tensor::requires_grad);
    bucket.gradients = std::make_unique<ScatteredGradients>(bucket.parameters,
                                                            bucket.layout,
                                                            group,
                                                            buffers,
                                                            options.replicate_group,
                                                            bucket.flat.scalar_type());
    bucket.written.emplace(bucket.parameters, bucket.layout, bucket.flat);
  }
  note_versions();
}

// Each group has this rank's pieces of its parameters, and its own options.
ShardGroups ShardsState::groups_of_parts(const Groups& groups) const {
  Groups parts = groups;
  for (OptimizerParamGroup& part : parts)
    part.params().clear();
  for (const ShardBucket& bucket : buckets)
    append_all(parts[bucket.group].params(), bucket.tensors);
  return parts;
}

// The order is that of the buckets, not that of the model.
Tensors ShardsState::tensors() const {
  return concatenated(buckets, &ShardBucket::tensors);
}

// The hooks go with the state, so they may know it.
void ShardsState::hang_hooks() {
  Tensors trained;
  std::vector<std::pair<size_t, size_t>> places;
  for (const size_t b : indices_of(buckets)) {
    for (const size_t i : indices_of(buckets[b].parameters)) {
      if (!buckets[b].parameters[i].requires_grad())
        continue;
      trained.push_back(buckets[b].parameters[i]);
      places.emplace_back(b, i);
    }
  }
  hooks.hang(trained, [this, places](size_t index) {
    on_gradient(places[index].first, places[index].second);
  });
}

// Only sharded gradients have stand-ins; whole ones stay readable.
void ShardsState::make_stand_ins() {
  const std::string error =
      cat("sharded optimizer: expected the gradients in the ranks' parts to be left to "
          "ShardedOptimizer, got a look at that of a parameter of the model (rank ",
          group.job_rank(),
          "); call its step(), clip by its clip_grad_norm(), clear with zero_grad() without an "
          "argument");
  for (ShardBucket& bucket : buckets) {
    bucket.stand_ins =
        std::make_unique<GradientStandIns>(bucket.parameters, error, [this] { begin_graph(); });
    optim::mark_divided_gradients(bucket.parameters);
    bucket.claimed = filtered(bucket.parameters, &Tensor::requires_grad);
    optim::claim_gradients(bucket.claimed);
  }
}

// A gradient that somebody has cleared in the model is cleared in the parts too.
void ShardsState::clear_parts() {
  if (!options.gradients)
    return;
  for (ShardBucket& bucket : buckets) {
    for (const size_t cleared : bucket.stand_ins->take_cleared()) {
      for (const size_t p : indices_of(bucket.pieces))
        if (bucket.pieces[p].parameter == cleared)
          bucket.tensors[p].mutable_grad().reset();
    }
  }
}

// The callback belongs to the graph that runs now, and goes with it, also when that fails.
void ShardsState::begin_graph() {
  const Lock lock(mutex);
  if (!graph.expired())
    return;
  require_sole_claim();
  clear_parts();
  for (ShardBucket& bucket : buckets)
    bucket.stand_ins->lift();
  reducing = false;
  graph = at_graph_end(weak_from_this(), &ShardsState::after_graph, &ShardsState::end_graph);
}

// The thread of the backward runs it. Buckets are reduced in order, though they may complete in
// another.
void ShardsState::on_gradient(size_t bucket, size_t parameter) {
  const Lock lock(mutex);
  if (!reduces) {
    kept_local = true;
    return;
  }
  begin_backward();
  buckets[bucket].gradients->take(parameter);
  while (next < buckets.size() && buckets[next].gradients->complete())
    start_next();
}

// What a backward that failed has left is dropped.
void ShardsState::begin_backward() {
  if (reducing)
    return;
  require_same_trained();
  require_unwritten_parts();
  for (ShardBucket& bucket : buckets)
    bucket.gradients->drop();
  under_way.clear();
  next = 0;
  kept_local = false;
  reducing = true;
  outside.look();
}

// The end of a backward: buckets that are not complete are reduced as they are.
void ShardsState::after_graph() {
  const Lock lock(mutex);
  give_gradients_to_this_stream(tensors());
  while (reducing && next < buckets.size()) {
    buckets[next].gradients->use_here();
    start_next();
  }
  while (reducing && !under_way.empty())
    finish_oldest();
  if (reducing)
    outside.compare(group, options.replicate_group);
  graph.reset();
  for (ShardBucket& bucket : buckets)
    bucket.stand_ins->put();
}

// Called also for a backward that failed, which reduces nothing.
void ShardsState::end_graph() {
  const Lock lock(mutex);
  for (ShardBucket& bucket : buckets)
    bucket.stand_ins->put();
}

// Two at a time: one is reduced while the next one's gradients come.
void ShardsState::start_next() {
  if (under_way.size() == 2)
    finish_oldest();
  new_to_group.tell(CallNumber::here(), [&] { buckets[next].gradients->start(); });
  traffic.scattered += buckets[next].gradients->bytes();
  under_way.push_back(next++);
}

void ShardsState::finish_oldest() {
  ShardBucket& bucket = buckets[under_way.front()];
  under_way.pop_front();
  new_to_replicas.tell(CallNumber::here(), [&] { take_reduced(bucket, same_samples, group); });
}

// With whole gradients (ZeRO-1) each piece's gradient is a view of the parameter's.
void ShardsState::lend_whole_gradients() {
  const Tensors parameters = concatenated(buckets, &ShardBucket::parameters);
  averaged.require(parameters, group);
  if (options.replicate_group)
    averaged_over_replicas.require(parameters, *options.replicate_group);
  for (ShardBucket& bucket : buckets) {
    for (const size_t i : indices_of(bucket.pieces)) {
      const FlatPiece& piece = bucket.pieces[i];
      const Tensor& gradient = bucket.parameters[piece.parameter].grad();
      if (!gradient.defined())
        continue;
      if (gradient.layout() != kStrided) {
        throw failed_precondition(
            "sharded optimizer: expected dense gradients, got a sparse one of a "
            "parameter of shape [",
            sizes_text(gradient),
            "] (rank ",
            group.job_rank(),
            "); make the embedding with sparse(false)");
      }
      bucket.tensors[i].mutable_grad() =
          gradient.reshape({-1}).narrow(0, piece.begin, piece.length);
    }
  }
}

// The views go after the step, so that the model alone holds its gradients.
void ShardsState::return_whole_gradients() {
  for (ShardBucket& bucket : buckets)
    for (Tensor& tensor : bucket.tensors)
      tensor.mutable_grad().reset();
}

// torch::load and others give parameters memory of their own: what is in it goes to the flat
// buffers. Each rank keeps its own part of it, so all must have loaded the same.
void ShardsState::take_replaced() {
  Tensors replaced;
  Tensors places;
  for (ShardBucket& bucket : buckets) {
    for (const size_t i : indices_of(bucket.parameters)) {
      const Tensor place = bucket.layout.place(bucket.flat, i);
      if (lies_at(bucket.parameters[i], place))
        continue;
      require_same_place("sharded optimizer", bucket.parameters[i], place, group);
      require_same_type(bucket.parameters[i], place);
      replaced.push_back(bucket.parameters[i]);
      places.push_back(place);
    }
  }
  if (replaced.empty())
    return;
  require_same_values(replaced, group);
  if (options.replicate_group)
    require_same_values(replaced, *options.replicate_group);
  for (const size_t i : indices_of(replaced)) {
    places[i].copy_(replaced[i]);
    replaced[i].set_data(places[i]);
  }
}

// A step keeps what this rank has written to its own part of a parameter, and what the others have
// in theirs. With whole gradients the wrapped model compares the weights.
void ShardsState::note_written() {
  const NoGradGuard no_grad;
  for (ShardBucket& bucket : buckets) {
    if (!bucket.written)
      continue;
    const Int64s hashes = bucket.written->hashes_of_changed();
    for (const int64_t hash : hashes) {
      new_to_group.add(hash);
      new_to_replicas.add(hash);
    }
  }
}

// Each rank would update its part by its own gradients.
void ShardsState::require_averaged_gradients() const {
  if (group.size() == 1 || !has_local_gradient())
    return;
  throw failed_precondition(
      "sharded optimizer: expected gradients that were averaged over the ranks, got "
      "those of a backward inside no_sync() (rank ",
      group.job_rank(),
      "); run the last backward before each step outside of no_sync()");
}

// With sharded gradients a whole one is left by no_sync() alone; with whole ones the wrapped model
// knows.
bool ShardsState::has_local_gradient() const {
  if (options.gradients && !kept_local)
    return false;
  return any_of(buckets, [&](const ShardBucket& bucket) {
    return any_of(bucket.parameters, [&](const Tensor& parameter) {
      const Tensor& gradient = parameter.grad();
      if (!gradient.defined())
        return false;
      return options.gradients ? gradient.storage().nbytes() > 0
                               : LiveReducer::any_keeps_gradient(parameter);
    });
  });
}

// Forward and backward would be of one type, and the step of another.
void ShardsState::require_same_type(const Tensor& parameter, const Tensor& place) const {
  if (parameter.scalar_type() == place.scalar_type())
    return;
  throw failed_precondition(
      "sharded optimizer: expected parameters of ",
      toString(place.scalar_type()),
      ", as they were sharded, got one of ",
      tensor_text(parameter),
      " (rank ",
      group.job_rank(),
      "); call net->to(type) before the optimizer is made, and load values of its type");
}

// What was added later has no part in the inner optimizer.
void ShardsState::require_same_groups(const Groups& groups) const {
  if (groups.size() != given.size()) {
    throw failed_precondition("sharded optimizer: expected ",
                              plural(given.size(), "parameter group"),
                              ", got ",
                              groups.size(),
                              " (rank ",
                              group.job_rank(),
                              "); give all groups to the constructor, which divides them");
  }
  for (const size_t g : indices_of(groups)) {
    if (std::ranges::equal(groups[g].params(), given[g], &Tensor::is_same))
      continue;
    throw failed_precondition("sharded optimizer: expected the ",
                              plural(given[g].size(), "tensor"),
                              " that parameter group ",
                              g,
                              " had at construction, got ",
                              groups[g].params().size(),
                              groups[g].params().size() == given[g].size() ? " others" : "",
                              " (rank ",
                              group.job_rank(),
                              "); give all parameters to the constructor, which divides them");
  }
}

// What is frozen later gets no gradient any more. For the other way there is neither a hook nor a
// gradient.
void ShardsState::require_same_trained() const {
  for (const ShardBucket& bucket : buckets) {
    for (const size_t i : indices_of(bucket.parameters)) {
      if (bucket.trained[i] || !bucket.parameters[i].requires_grad())
        continue;
      throw failed_precondition(
          "sharded optimizer: expected parameters that were frozen at its construction "
          "to stay frozen, got one of shape [",
          sizes_text(bucket.parameters[i]),
          "] that requires a gradient (rank ",
          group.job_rank(),
          "); make the optimizer after unfreezing, with gather_state and divide_state "
          "for its state");
    }
  }
}

// The other ranks have a part's values from the last step: the forward has computed with those, and
// this rank's with others.
void ShardsState::require_unwritten_parts() const {
  const bool is_written = std::ranges::any_of(buckets, [](const ShardBucket& bucket) {
    return static_cast<int64_t>(bucket.flat._version()) != bucket.gathered_version;
  });
  if (!is_written)
    return;
  throw failed_precondition(
      "sharded optimizer: expected the parts of param_groups() as the last step has left them in a "
      "backward, got ones that were changed since, which the other ranks have not got (rank ",
      group.job_rank(),
      "); change net->parameters() on all ranks, or the parts between a backward and step()");
}

// Each would take the gradient away from the other. That two live is no fault yet: a new one is
// often made before the old one goes. All ranks have the same ones, and throw together.
void ShardsState::require_sole_claim() const {
  if (!options.gradients)
    return;
  for (const ShardBucket& bucket : buckets) {
    for (const size_t i : indices_of(bucket.parameters)) {
      const int claims = optim::claims_of_gradient(bucket.parameters[i]);
      if (claims < 2 || !bucket.trained[i])
        continue;
      throw failed_precondition(
          "sharded optimizer: expected one living ShardedOptimizer with .gradients for "
          "each parameter, got ",
          claims,
          " that share parameter ",
          bucket.places[i],
          " of group ",
          bucket.group,
          ", of shape [",
          sizes_text(bucket.parameters[i]),
          "] (rank ",
          group.job_rank(),
          "); destroy the earlier one before the next backward, or give one optimizer "
          "all parameters, in groups");
    }
  }
}

// All ranks call it together. All gathers are started before the first is waited for.
void ShardsState::gather() {
  new_to_group.tell(CallNumber::here(), [&] {
    std::vector<Work> works;
    for (ShardBucket& bucket : buckets) {
      const Tensor mine = bucket.layout.part_of(bucket.flat, group.rank());
      works.push_back(group.all_gather_async(bucket.flat, mine));
      traffic.gathered += bytes_of_tensor(bucket.flat);
    }
    for (Work& work : works)
      work.wait();
  });
  // Autograd must see that values have changed, or it would use saved ones.
  for (ShardBucket& bucket : buckets)
    for (const Tensor& parameter : bucket.parameters)
      parameter.unsafeGetTensorImpl()->bump_version();
  note_versions();
}

// The parts share the flat buffer's version, and the parameters have their own.
void ShardsState::note_versions() {
  for (ShardBucket& bucket : buckets) {
    bucket.gathered_version = static_cast<int64_t>(bucket.flat._version());
    if (bucket.written)
      bucket.written->note();
  }
}

// All ranks construct it together. `kind` is null for an optimizer that cannot step parts.
ShardedOptimizerBase::ShardedOptimizerBase(const char* kind,
                                           Groups groups,
                                           std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                           const MakeInner& make,
                                           ProcessGroup group,
                                           const ShardedOptimizerOptions& options)
    : Optimizer(Groups{}, std::move(defaults)),
      state_of_shards_(std::make_shared<State>(group, options)) {
  std::string wrong;
  if (kind == nullptr) {
    wrong =
        cat("sharded optimizer: expected one that updates each element independently (SGD, Adam, "
            "AdamW, Adagrad, RMSprop), got LBFGS (rank ",
            group.job_rank(),
            "); train with one of those, or do not shard it");
  }
  const Terms terms = {{"optimizer", wrong.empty() ? kind : "LBFGS"},
                       {"gradients", options.gradients ? "sharded" : "whole"},
                       {"bucket_mb", cat(options.bucket_mb)},
                       {"groups", cat(groups.size())},
                       {"learning rate", rates_of(groups, *defaults_)}};
  optim::keep_each_once("sharded optimizer", groups, cat(" (rank ", group.job_rank(), ")"));
  const Tensors all = shard_all_parameters(groups);
  if (wrong.empty() && options.gradients)
    wrong = wrapped_problem("sharded optimizer", all, group);
  agree_on_parameters("sharded optimizer", all, wrong, terms, group);
  if (options.replicate_group)
    agree_on_parameters(
        "sharded optimizer", all, wrong, terms, *state_of_shards_->options.replicate_group);
  State& state = *state_of_shards_;
  state.make_buckets(groups);
  optim::record_parts(state.tensors());
  const Groups parts = state.groups_of_parts(groups);
  state.inner = make(parts);
  for (const OptimizerParamGroup& own : options.gradients ? parts : groups) {
    add_param_group(own);
    state.given.push_back(own.params());
  }
  if (!options.gradients)
    return;
  optim::mark_divided_gradients(state.tensors());
  state.make_stand_ins();
  state.hang_hooks();
}

ShardedOptimizerBase::~ShardedOptimizerBase() = default;

Tensor ShardedOptimizerBase::step(LossClosure closure) {
  Tensor loss;
  // The closure runs a backward, so it needs gradients although the step does not.
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const NoGradGuard no_grad;
  State& state = *state_of_shards_;
  state.require_same_groups(param_groups_);
  state.require_sole_claim();
  state.require_averaged_gradients();
  state.take_replaced();
  state.note_written();
  state.clear_parts();
  options_to_part();
  if (!state.options.gradients)
    state.lend_whole_gradients();
  state.inner->step();
  if (!state.options.gradients)
    state.return_whole_gradients();
  state.gather();
  return loss;
}

void ShardedOptimizerBase::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  if (!state_of_shards_->options.gradients)
    return;
  // The model's own parameters hold stand-ins, which are cleared too.
  for (ShardBucket& bucket : state_of_shards_->buckets)
    for (Tensor& parameter : bucket.parameters)
      parameter.mutable_grad().reset();
}

// The guard puts back what was before, so guards may nest.
std::shared_ptr<void> ShardedOptimizerBase::no_sync() {
  const std::shared_ptr<State> state = state_of_shards_;
  const bool before = state->reduces;
  state->reduces = false;
  return {nullptr, [state, before](void*) { state->reduces = before; }};
}

// All ranks call it together, since the norm is one over all parts.
Tensor ShardedOptimizerBase::clip_grad_norm(double max_norm) {
  State& state = *state_of_shards_;
  if (!state.options.gradients) {
    throw failed_precondition(
        "sharded optimizer: expected sharded gradients, got whole ones (rank ",
        state.group.job_rank(),
        "); use muster::clip_grad_norm on the model's parameters");
  }
  require_whole_layers(concatenated(state.buckets, &ShardBucket::parameters), state.group);
  state.clear_parts();
  return clip_sharded_grads(state.tensors(), max_norm, state.group);
}

Optimizer& ShardedOptimizerBase::part() {
  return *state_of_shards_->inner;
}

// All ranks call it together. `plain` gets the state of whole parameters on every rank.
void ShardedOptimizerBase::gather_state(Optimizer& plain) {
  State& state = *state_of_shards_;
  for (const ShardBucket& bucket : state.buckets)
    gather_optimizer_state(bucket.parts(), *state.inner, plain, state.group);
  options_to_part();
  copy_group_options(*state.inner, plain);
}

// It exchanges nothing. An optimizer with another number of groups keeps its options.
void ShardedOptimizerBase::divide_state(Optimizer& plain) {
  State& state = *state_of_shards_;
  for (const ShardBucket& bucket : state.buckets)
    divide_optimizer_state(bucket.parts(), *state.inner, plain);
  copy_options_of_any(plain, *this);
}

void ShardedOptimizerBase::save(torch::serialize::OutputArchive& /*archive*/) const {
  refuse_archive("torch::save");
}

void ShardedOptimizerBase::load(torch::serialize::InputArchive& /*archive*/) {
  refuse_archive("torch::load");
}

TensorPieces ShardedOptimizerBase::pieces(const Module& model) const {
  const ParameterNames names(model);
  TensorPieces pieces;
  for (const ShardBucket& bucket : state_of_shards_->buckets)
    add_flat_pieces(pieces, "sharded optimizer", names, bucket.parts());
  note_model(pieces, model);
  return pieces;
}

// Learning rates that the program has set reach the inner optimizer before each step.
void ShardedOptimizerBase::options_to_part() {
  copy_options_of_any(*this, part());
}

// It is the reverse of options_to_part().
void ShardedOptimizerBase::options_from_part() {
  copy_options_of_any(part(), *this);
}

ShardedTraffic ShardedOptimizerBase::traffic() const {
  return state_of_shards_->traffic;
}

}  // namespace muster
