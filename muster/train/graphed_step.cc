// A graph has the addresses and numbers of its capture. What changes from step to step is written
// before a replay: the batch, the rates and counts of the optimizers. What must not change is
// compared: where parameters, buffers and states lie, modes and options. NCCL wants all ranks to
// replay a step or none, so they agree on it.
#include "muster/train/graphed_step.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <exception>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/call/stream_order.h"
#include "muster/comm/job_ranks.h"
#include "muster/ddp/join_rounds.h"
#include "muster/optim/graph_numbers.h"
#include "muster/optim/parts.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

std::string shapes_and_types(const Tensors& tensors) {
  return join(mapped(tensors, tensor_text<Tensor>), ", ");
}

// Whether the batch fits: as many tensors of the same type and shape, but for the number of rows.
bool is_alike(const Tensors& batch, const Tensors& first) {
  const auto same = [](const Tensor& one, const Tensor& other) {
    return one.dim() == other.dim() && one.scalar_type() == other.scalar_type() &&
           (one.dim() == 0 || one.sizes().slice(1) == other.sizes().slice(1));
  };
  return std::ranges::equal(batch, first, same);
}

// Whether all tensors that have rows have fewer.
bool has_fewer_rows(const Tensors& batch, const Tensors& first) {
  return std::ranges::equal(batch, first, [](const Tensor& one, const Tensor& other) {
    return one.dim() == 0 || one.size(0) < other.size(0);
  });
}

bool has_same_rows(const Tensors& batch, const Tensors& first) {
  return std::ranges::equal(batch, first, [](const Tensor& one, const Tensor& other) {
    return one.sizes() == other.sizes();
  });
}

template <class Use>
void for_each_module(Module& module, const Use& use) {
  use(module);
  for (const auto& child : module.children())
    for_each_module(*child, use);
}

void describe_module(Module& module, std::vector<uint64_t>& into) {
  for_each_module(module, [&](Module& one) {
    into.push_back(one.is_training() ? 1 : 0);
    for (const Tensor& parameter : one.parameters(/*recurse=*/false)) {
      into.push_back(optim::address_of(parameter));
      into.push_back(parameter.requires_grad() ? 1 : 0);
    }
    for (const Tensor& buffer : one.buffers(/*recurse=*/false))
      into.push_back(optim::address_of(buffer));
  });
}

constexpr Refusal refuse{"graphed step", "or use TrainStep"};

// Averages are not part of the graph: their decay may follow the step.
TrainStepOptions without_averages(TrainStepOptions options) {
  options.ema = {};
  return options;
}

Device device_of(const Optimizers& optimizers) {
  std::optional<Device> found;
  for (const Optimizer* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const Tensor& parameter : group.params()) {
        if (found && *found != parameter.device())
          refuse("parameters on one device", cat(found->str(), " and ", parameter.device().str()));
        found = parameter.device();
      }
    }
  }
  return found.value_or(Device(kCPU));
}

}  // namespace

GraphedStep::GraphedStep(StepModels models, Optimizers optimizers, const TrainStepOptions& options)
    : models_(std::move(models)),
      frozen_(options.frozen),
      optimizers_(std::move(optimizers)),
      ema_(options.ema),
      device_(device_of(optimizers_)),
      step_(std::make_unique<TrainStep>(models_, optimizers_, without_averages(options))),
      device_steps_(step_->device_steps_) {
  check_options(options);
  check_models();
  for (optim::DeviceStep* const optimizer : device_steps_)
    optimizer->round_rates();
  if (!device_.is_cuda()) {
    log_warning("GraphedStep: the model is on ",
                device_.str(),
                ", which has no graphs, so all steps run as TrainStep's");
    return;
  }
  side_ = new_gpu_stream(device_);
  let_wait(*side_, current_stream_of(device_));
  const c10::StreamGuard on_side(*side_);
  for (GradientReducer* reducer : models_.reducers())
    reducer->accumulate_on_this_stream();
}

// What was not told yet is told here, on the stream where it is.
GraphedStep::~GraphedStep() {
  if (!side_)
    return;
  const c10::StreamGuard on_side(*side_);
  step_.reset();
}

void GraphedStep::check_options(const TrainStepOptions& options) const {
  if (device_steps_.empty())
    refuse("optimizers of muster::optim", "another");
  if (step_->scales())
    refuse("no loss scale", "fp16, whose scale the host decides on; take bf16");
  if (options.on_nonfinite == OnNonfinite::skip || options.on_nonfinite == OnNonfinite::go_back)
    refuse("on_nonfinite stop or ignore", "skip or go_back, which the host decides on");
  if (options.clip)
    refuse("clip_norm or clip_value", "clip, a function that a replay would not call");
  if (options.unreduced && !options.group && job_ranks() > 1)
    refuse("a group with .unreduced, of the ranks that replay a step together", "none");
}

void GraphedStep::check_models() const {
  for (const GradientReducer* reducer : models_.reducers()) {
    const auto obstacle = reducer->obstacle_to_graph();
    if (!obstacle.empty())
      refuse("a model wrapped with what a graph can have", obstacle);
  }
  if (any_of(step_->parameters_, optim::has_divided_gradient))
    refuse("a model whose gradients are whole on each rank",
           "a fully sharded one, or one of a ShardedOptimizer with .gradients");
}

Tensor GraphedStep::run(double weight,
                        bool last,
                        const Tensors& inputs,
                        const LossOfInputs& loss_of) {
  check_inputs(last, inputs);
  Tensor loss;
  if (side_) {
    const c10::Stream users = current_stream_of(device_);
    const OnStream on_side(side_);
    loss = run_on_side(users, weight, inputs, loss_of);
    on_side.give(loss);
    on_side.give(step_->grad_norm_);
  } else {
    loss = run_as_usual(weight, inputs, loss_of);
  }
  for (Ema* const ema : ema_)
    ema->update();
  return loss;
}

void GraphedStep::check_inputs(bool last, const Tensors& inputs) {
  if (broken_) {
    throw failed_precondition(
        "graphed step: expected a step that could be captured, got one of which the "
        "capture has failed",
        place(),
        "; mend what its error named, or use TrainStep");
  }
  if (!last)
    refuse("one batch a step", cat("several (gradient accumulation)", place()));
  if (RanksShadow::here()) {
    throw failed_precondition(
        "graphed step: expected to be outside of join(), got a step inside of it",
        place(),
        "; give all ranks the same number of inputs");
  }
  for (const Tensor& input : inputs) {
    if (side_ && input.device() != device_)
      refuse(cat("a batch on ", device_.str()), cat(input.device().str(), place()));
    if (input.requires_grad())
      refuse("a batch without gradients of its own", cat("a tensor that requires one", place()));
  }
  if (first_.empty()) {
    first_ = mapped(inputs, [&](const Tensor& input) {
      return at::empty_like(input, input.options().device(c10::kMeta));
    });
  }
  if (is_alike(inputs, first_) && (has_same_rows(inputs, first_) || has_fewer_rows(inputs, first_)))
    return;
  throw invalid_argument(
      "graphed step: expected batches like the first, ",
      shapes_and_types(first_),
      ", or with fewer rows, got ",
      shapes_and_types(inputs),
      place(),
      "; give all batches one shape and type (padding, drop_last), or use TrainStep");
}

// A rank alone asks nobody.
GraphedStep::Way GraphedStep::agree(Way mine) {
  auto& group = step_->group_;
  if (!group || group->size() == 1)
    return mine;
  const Tensor own = at::full({1}, static_cast<int64_t>(mine), kLong);
  const Tensor all = at::empty({group->size()}, kLong);
  group->all_gather(all, own);
  return Way(all.max().item<int64_t>());
}

GraphedStep::Way GraphedStep::way_of(double weight, const Tensors& inputs) {
  if (graph_ && description() != described_)
    return Way::begin_anew;
  return weight == 1 && has_same_rows(inputs, first_) ? Way::replay : Way::as_usual;
}

// Runs on the side stream, for which everything before has been waited for.
Tensor GraphedStep::run_on_side(const c10::Stream& users,
                                double weight,
                                const Tensors& inputs,
                                const LossOfInputs& loss_of) {
  for (const Tensor& input : inputs)
    record_on(input, *side_);
  const Way way = agree(way_of(weight, inputs));
  if (way == Way::begin_anew)
    forget_graph();
  if (graph_ && way == Way::as_usual && !std::exchange(told_of_fewer_, true)) {
    log_info("GraphedStep: a batch of ",
             shapes_and_types(inputs),
             " with weight ",
             weight,
             " runs without the graph, on all ranks",
             place());
  }
  const bool warms_up = !graph_ && warm_ups_ < kWarmUpSteps;
  if (warms_up || way == Way::as_usual) {
    share_memory(users);  // the models'
    const uint64_t reducers = num_reducers_made();
    Tensor loss = run_as_usual(weight, inputs, loss_of);
    share_memory(users);  // the optimizers', which the first step makes
    const int64_t before = num_reducers_made() == reducers ? warm_ups_ : 0;
    warm_ups_ = before + (warms_up ? 1 : 0);
    return loss;
  }
  if (!graph_)
    capture(inputs, loss_of);
  return replay(inputs);
}

Tensor GraphedStep::run_as_usual(double weight,
                                 const Tensors& inputs,
                                 const LossOfInputs& loss_of) {
  return step_->run(weight, /*last=*/true, [&] { return loss_of(inputs); });
}

// What the steps allocate outside of the graph, before it: in the graph's memory the kernels before
// them would leave something else there in every replay.
void GraphedStep::capture(const Tensors& inputs, const LossOfInputs& loss_of) {
  inputs_ = mapped(inputs, [&](const Tensor& input) { return at::empty_like(input).copy_(input); });
  numbers_ = mapped(device_steps_, [&](optim::DeviceStep* const optimizer) {
    return optimizer->numbers_for_graph();
  });
  auto graph = make_gpu_graph();
  wait_for_device(device_);
  const Span span("capture", Category::compute);
  const CapturesGraph captures;
  graph->begin();
  broken_ = true;
  try {
    launch(loss_of);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    step_->end();
    try {
      graph->end();
    } catch (const std::exception&) {
      // The first failure is the one to tell.
    }
    fail_capture(what);
  }
  try {
    graph->end();
  } catch (const std::exception& error) {
    fail_capture(error.what());
  }
  broken_ = false;
  graph_ = std::move(graph);
  described_ = description();
}

void GraphedStep::fail_capture(const std::string& what) const {
  throw failed_precondition(
      "graphed step: expected a step that a CUDA graph can have, without waits for the GPU "
      "(item(), copies to the host, shapes that depend on values), got: ",
      split(what, '\n').at(0),
      place(),
      "; move it out of the step, or use TrainStep");
}

// Captures what TrainStep does on the GPU. The parts on the host are replay()'s.
void GraphedStep::launch(const LossOfInputs& loss_of) {
  expect_buffers_to_differ();  // also where an evaluation came before
  step_->begin();
  loss_ = step_->backward(1, /*last=*/true, [&]() -> TrainStep::MicroLoss {
    Tensor loss = loss_of(inputs_);
    return {.loss = loss, .shown = loss};
  });
  if (!all_of(device_steps_, &optim::DeviceStep::can_leave_out)) {
    throw failed_precondition(
        "gradients or options that one kernel does not take (sparse, complex, SGD's dampening)");
  }
  step_->is_late_ = step_->decides_late();
  step_->clip_and_check();
  std::optional<Tensor> found;
  if (step_->is_late_)
    found = step_->late_.leaves_out();
  for (const size_t i : indices_of(device_steps_))
    device_steps_[i]->capture(*numbers_[i], found);
  grad_norm_ = step_->grad_norm_;
  step_->end();
}

Tensor GraphedStep::replay(const Tensors& inputs) {
  const Span span("step", Category::compute);
  const NoGradGuard no_grad;
  step_->tell_of_earlier_steps();
  for (const size_t i : indices_of(inputs))
    inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  for (const size_t i : indices_of(device_steps_))
    device_steps_[i]->before_replay(*numbers_[i]);
  if (step_->group_)
    step_->group_->watch_stream("replay", replays_ + 1, [&] { graph_->replay(); });
  else
    graph_->replay();
  step_->loss_ = loss_.clone();
  if (grad_norm_.defined())
    step_->grad_norm_ = grad_norm_.clone();
  step_->count_step();
  step_->late_.read(step_->loss_);
  expect_buffers_to_differ();
  ++replays_;
  return step_->loss_;
}

// For an evaluation or a step without the graph, which come next or have come before.
void GraphedStep::expect_buffers_to_differ() const {
  for (GradientReducer* reducer : models_.reducers())
    reducer->expect_buffers_to_differ();
}

uint64_t GraphedStep::num_reducers_made() const {
  return sum_of<uint64_t>(models_.reducers(), &GradientReducer::num_reducers_made);
}

void GraphedStep::forget_graph() {
  ++graphs_forgotten_;
  log(graphs_forgotten_ == 1 ? LogLevel::info : LogLevel::warn,
      "GraphedStep: a model or optimizer has other memory, options or modes than the captured "
      "step, so the steps begin anew (",
      graphs_forgotten_,
      " so far)",
      place());
  graph_.reset();
  numbers_.clear();
  inputs_.clear();
  loss_.reset();
  grad_norm_.reset();
  warm_ups_ = 0;
}

// The allocator hears of all streams that use a model and its optimizers: the side stream, and the
// one on which the program saves and evaluates.
void GraphedStep::share_memory(const c10::Stream& stream) const {
  const auto share = [&](const Tensor& tensor) {
    record_on(tensor, *side_);
    record_on(tensor, stream);
  };
  for (const auto& models : {models_, frozen_}) {
    for (const StepModel& model : models) {
      for (const Tensor& tensor : model.module().parameters())
        share(tensor);
      for (const Tensor& tensor : model.module().buffers())
        share(tensor);
    }
  }
  for (optim::DeviceStep* const optimizer : device_steps_) {
    for (const Tensor& tensor : optimizer->state_tensors())
      share(tensor);
  }
}

std::vector<uint64_t> GraphedStep::description() const {
  std::vector<uint64_t> found;
  for (const auto* models : {&models_, &frozen_}) {
    for (const StepModel& model : *models)
      describe_module(model.module(), found);
    for (const GradientReducer* reducer : models->reducers())
      found.push_back(reducer->num_buckets_made());
  }
  for (optim::DeviceStep* const optimizer : device_steps_)
    optimizer->describe(found);
  return found;
}

SavedState GraphedStep::state() const {
  if (!side_)
    return step_->state();
  const c10::StreamGuard on_side(*side_);
  return step_->state();
}

}  // namespace muster
