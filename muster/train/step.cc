// A step gathers the gradients of its micro-batches, has the ranks agree on whether they are
// finite, clips them, and lets the optimizers step. Gradients belong to the step from its first
// micro-batch to its last: it clears them before and after, and notices when somebody else has
// written to them.
#include "muster/train/step.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/training/resumed_training.h"
#include "muster/comm/job_ranks.h"
#include "muster/optim/plain_class.h"
#include "muster/trace/span.h"
#include "muster/train/gradients.h"
#include "muster/train/same_rates.h"
#include "muster/train/step_arguments.h"

namespace muster {

namespace {

// An exchange of some bytes between the hosts, in the first step and in each of so many.
constexpr int64_t kCompareRatesEvery = 100;

// In place of a gradient's version.
constexpr int64_t kNoGradient = -1;

// Makes the parameters of models want no gradient until the end of the scope.
class FreezeGuard : NoCopy {
 public:
  explicit FreezeGuard(const StepModels& models) {
    for (const StepModel& model : models) {
      for (Tensor& parameter : model.module().parameters()) {
        if (!parameter.requires_grad())
          continue;
        parameter.requires_grad_(false);
        frozen_.push_back(parameter);
      }
    }
  }
  ~FreezeGuard() {
    for (const Tensor& parameter : frozen_)
      parameter.requires_grad_(true);
  }

 private:
  Tensors frozen_;
};

// Returns the parameters of all optimizers, in their order.
Tensors parameters_of_all(const Optimizers& optimizers) {
  return concatenated(optimizers, [](Optimizer* optimizer) { return parameters_of(*optimizer); });
}

// Whether the optimizers still have these parameters and no others.
bool has_the_same(const Tensors& parameters, const Optimizers& optimizers) {
  return std::ranges::equal(parameters, parameters_of_all(optimizers), &Tensor::is_same);
}

// Refuses parameters that this step is to train and to leave alone.
void check_not_frozen(const Tensors& trained, const StepModels& frozen) {
  const auto seen = mapped_to<TensorImpls>(trained, &Tensor::unsafeGetTensorImpl);
  for (const StepModel& model : frozen) {
    for (const auto& item : model.module().named_parameters()) {
      if (!seen.contains(item.value().unsafeGetTensorImpl()))
        continue;
      throw invalid_argument(
          "train step: expected frozen models without parameters of its optimizers, got '",
          item.key(),
          "' in both; freeze the model that another step trains");
    }
  }
}

// Returns the group of the first wrapped model whose gradients are averaged over ranks.
std::optional<ProcessGroup> group_of(const StepModels& models) {
  for (GradientReducer* reducer : models.reducers()) {
    if (reducer->group().size() > 1)
      return reducer->group();
  }
  return std::nullopt;
}

// Whether a wrapped model leaves the parameter's gradient to each rank.
bool is_ignored(const StepModels& models, const Tensor& parameter) {
  return any_of(models.reducers(),
                [&](const GradientReducer* reducer) { return reducer->ignores(parameter); });
}

// Whether the model has gradients that no reduction has made equal on all ranks. Inside of the
// program's own no_sync() that is meant.
bool keeps_gradients_of_this_rank(const StepModel& model) {
  GradientReducer* const reducer = model.reducer();
  if (reducer == nullptr || reducer->group().size() == 1)
    return false;
  if (!reducer->reduces() || !reducer->has_local_gradients())
    return false;
  return any_of(model.module().parameters(), [&](const Tensor& parameter) {
    return parameter.grad().defined() && !reducer->ignores(parameter);
  });
}

// Says why a tensor is no loss, for a message.
std::string kind_of_loss(const Tensor& loss) {
  if (!loss.defined())
    return "an undefined tensor";
  if (loss.numel() != 1)
    return cat("a tensor of shape [", sizes_text(loss), "]");
  return "one that does not depend on parameters";
}

void check_loss_is_scalar(const Tensor& loss, const std::string& place) {
  if (loss.defined() && loss.numel() == 1 && loss.requires_grad())
    return;
  throw invalid_argument(
      "train step: expected the closure to return the mean loss of the "
      "batch, got ",
      kind_of_loss(loss),
      place,
      "; return a scalar that was computed from the model");
}

// Returns the optimizers as those that can leave out a step on the device; none if one cannot. A
// class that is derived from them may have a step() of its own, which is to be called.
std::vector<optim::DeviceStep*> device_steps_of(const Optimizers& optimizers) {
  std::vector<optim::DeviceStep*> found;
  for (Optimizer* optimizer : optimizers) {
    auto* const device_step = dynamic_cast<optim::DeviceStep*>(optimizer);
    if (device_step == nullptr || !optim::is_plain(*optimizer))
      return {};
    found.push_back(device_step);
  }
  return found;
}

// Refuses LBFGS, which evaluates the loss as often as it likes in its own step.
void check_steps_alone(const Optimizers& optimizers) {
  for (const Optimizer* optimizer : optimizers) {
    if (dynamic_cast<const torch::optim::LBFGS*>(optimizer) == nullptr)
      continue;
    throw invalid_argument(
        "train step: expected an optimizer that steps by the gradients that are there, got LBFGS, "
        "which "
        "calls the loss itself; call optimizer.step(closure) in a loop of your own, and return "
        "mean_over_ranks(loss, group) from the closure");
  }
}

}  // namespace

TrainStep::TrainStep(StepModels models, Optimizers optimizers, const TrainStepOptions& options)
    : models_(std::move(models)),
      optimizers_(std::move(optimizers)),
      options_(options),
      group_(options.group ? options.group : group_of(models_)) {
  if (optimizers_.empty()) {
    throw invalid_argument(
        "train step: expected at least one optimizer, got none; pass the model's");
  }
  check_steps_alone(optimizers_);
  check_schedules(options_.schedule, optimizers_);
  device_steps_ = device_steps_of(optimizers_);
  check_way_back(options_);
  if (options.clip && options.clip_norm) {
    throw invalid_argument("train step: expected clip or clip_norm, got both, and clip_norm ",
                           *options.clip_norm,
                           "; leave out clip_norm: clip has its own");
  }
  take_parameters();
}

void TrainStep::take_parameters() {
  parameters_ = parameters_of_all(optimizers_);
  own_parameters_.clear();
  shared_parameters_.clear();
  for (const Tensor& parameter : parameters_) {
    auto& list = is_ignored(models_, parameter) ? own_parameters_ : shared_parameters_;
    list.push_back(parameter);
  }
  all_are_averaged_ = own_parameters_.empty() && are_all_wrapped(models_, parameters_);
  check_each_once(models_, parameters_);
  check_not_frozen(parameters_, options_.frozen);
  check_trains_models(models_, optimizers_);
  check_divided(parameters_, options_);
  check_layer_parts(parameters_, options_);
  const int ranks = std::max(job_ranks(), group_ ? group_->size() : 1);
  if (!options_.unreduced)
    check_reduced(models_, parameters_, ranks);
}

Tensor TrainStep::run(double weight, bool last, const std::function<Tensor()>& loss_of) {
  return run_micro_batch(weight, last, [&]() -> MicroLoss {
    check_one_kind(/*is_sum=*/false);
    Tensor loss = loss_of();
    return {.loss = loss, .shown = loss};
  });
}

// A batch of weight 0 is there to take part, and its losses are others' samples.
Tensor TrainStep::run_sum(double weight, bool last, const std::function<SummedLoss()>& loss_of) {
  check_no_sum_in_join();
  const double part = weight == 0 ? 0 : 1;
  return run_micro_batch(part, last, [&]() -> MicroLoss {
    check_one_kind(/*is_sum=*/true);
    SummedLoss loss = as_scalars(loss_of(), place());
    Tensor mean = mean_of(loss);
    loss.count = loss.count * part;
    auto group = group_of_counts();
    return {.loss = counts_.add(loss, group), .shown = std::move(mean)};
  });
}

// The ranks of a wrapped model average its gradients; those of a sharded one are named.
std::optional<ProcessGroup> TrainStep::group_of_counts() const {
  auto group = group_of(models_);
  return group ? group : options_.group;
}

void TrainStep::check_one_kind(bool is_sum) const {
  const bool began_otherwise = !left_.empty() && counts_.empty() == is_sum;
  if (began_otherwise) {
    throw failed_precondition(
        "train step: expected losses of one kind in all micro-batches of a step, got a "
        "mean and a SummedLoss",
        place(),
        "; return one of them always");
  }
}

void TrainStep::check_no_sum_in_join() const {
  const auto group = group_of_counts();
  if (!group || group->size() == 1 || !RanksShadow::here())
    return;
  throw failed_precondition(
      "train step: expected to be outside of join() with a SummedLoss, as ranks "
      "without inputs add no counts, got a step inside of it",
      place(),
      "; set .stop_together of join(), or give all ranks the same number of inputs");
}

// A batch that fails ends the step: the gradients of the others are dropped with it.
Tensor TrainStep::run_micro_batch(double weight,
                                  bool last,
                                  const std::function<MicroLoss()>& loss_of) {
  const Span span("step", Category::compute);
  try {
    if (in_step_)
      check_untouched();
    else
      begin();
    Tensor loss = backward(weight, last, loss_of);
    if (last)
      finish();
    else
      left_ = marks();
    return loss;
  } catch (...) {
    end();  // the gradients so far are of no whole step
    throw;
  }
}

// Other backwards may have left gradients: a GAN's generator step goes through its discriminator.
void TrainStep::begin() {
  check_outside_of_join();
  // A model that is unfrozen layer by layer is handed to the optimizer so (add_param_group).
  if (!has_the_same(parameters_, optimizers_))
    take_parameters();
  for (const Tensor& parameter : parameters_)
    parameter.mutable_grad().reset();
  in_step_ = true;
  scale_updates_ = scales() ? options_.precision->updates() : 0;
}

// Another step that goes through this model would leave its gradients here.
void TrainStep::check_untouched() const {
  if (marks() != left_) {
    throw failed_precondition(
        "train step: expected the gradients that its last micro-batch left, got others",
        place(),
        "; where another step's loss goes through this model, name it in that step's .frozen");
  }
  if (scales() && options_.precision->updates() != scale_updates_) {
    throw failed_precondition(
        "train step: expected one loss scale for all micro-batches of a step, got an "
        "update between "
        "two",
        place(),
        "; give each TrainStep a Precision of its own");
  }
}

namespace {

// Whether nothing is left of a gradient. One without memory stands for what lies in parts.
bool is_cleared(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || !gradient.has_storage())
    return !gradient.defined();
  return gradient.storage().nbytes() > 0 && !gradient.any().item<bool>();
}

}  // namespace

// A zero_grad() in the function would take the gradients of the step's earlier micro-batches. Where
// nobody has touched them, nothing is asked of the device.
void TrainStep::check_kept() const {
  const bool had_gradients =
      any_of(left_, [](const Mark& mark) { return mark.version != kNoGradient; });
  if (!had_gradients || marks() == left_ || !all_of(parameters_, is_cleared))
    return;
  throw failed_precondition(
      "train step: expected the gradients of the step's earlier micro-batches after "
      "its function has run, got none",
      place(),
      "; leave zero_grad to the step");
}

// Only the last micro-batch of a step has its gradients averaged over the ranks.
Tensor TrainStep::backward(double weight, bool last, const std::function<MicroLoss()>& loss_of) {
  const auto local = mapped(models_.reducers(), [&](GradientReducer* reducer) {
    return std::make_unique<NoSync>(*reducer, !last);
  });
  const FreezeGuard frozen(options_.frozen);
  Tensor shown;
  const auto run_forward = [&] {
    MicroLoss micro = loss_of();
    shown = micro.shown.defined() ? micro.shown.detach() : micro.shown;
    return micro.loss;
  };
  const Tensor loss = [&] {
    const Span span("forward");
    return options_.precision != nullptr ? options_.precision->run(run_forward) : run_forward();
  }();
  check_kept();
  check_loss_is_scalar(loss, place());
  Tensor weighted = weight == 1 ? loss : loss * weight;
  if (options_.precision != nullptr)
    weighted = options_.precision->scale(weighted);
  const Span span("backward");
  weighted.backward();
  if (last)
    loss_ = shown;
  return shown;
}

// A model that only earlier micro-batches of the step have used kept their gradients for the last.
void TrainStep::check_all_reduced() const {
  size_t number = 0;
  for (const StepModel& model : models_) {
    ++number;
    if (!keeps_gradients_of_this_rank(model))
      continue;
    throw failed_precondition(
        "train step: expected the last micro-batch to go through every model that an "
        "earlier one went through, got none through model ",
        number,
        ", whose gradients would stay those of this rank",
        place(),
        "; use it in the last micro-batch too, or give it a TrainStep of its own");
  }
}

// Only wrapped models keep all ranks alike, and ranks in join() need not come.
void TrainStep::compare_rates() {
  const std::optional<ProcessGroup> wrapped = group_of(models_);
  const bool is_due = finished_++ % kCompareRatesEvery == 0;
  if (!is_due || !wrapped || !all_are_averaged_ || RanksShadow::here())
    return;
  ProcessGroup group = *wrapped;
  expect_same_rates(group, optimizers_, place());
}

// The gradients are of sums so far.
void TrainStep::divide_by_counts() {
  if (counts_.empty())
    return;
  auto group = group_of_counts();
  const LossCounts::Factors factors = counts_.factors(group);
  multiply(gradient_values(shared_parameters_), factors.averaged);
  multiply(gradient_values(own_parameters_), factors.own);
}

void TrainStep::finish() {
  check_all_reduced();
  compare_rates();
  tell_of_earlier_steps();
  is_late_ = decides_late();
  if (!is_late_)
    stop_if_left_out(late_.wait());  // no step is taken behind one that was left out
  divide_by_counts();
  const bool is_finite = clip_and_check();
  // While the loss scale still shrinks, nothing is lost yet.
  const bool shrinks = scales() && !is_finite && !options_.precision->is_at_floor();
  if (scales())
    update_scale();
  if (!is_finite && !shrinks && stops_at_nonfinite())
    stop_at_nonfinite("");
  if (is_finite) {
    step_optimizers();
    count_step();
  } else {
    leave_out(shrinks);
  }
  if (!loss_.is_cpu())
    late_.read(loss_);
  end();
}

// During an exception the GPU may wait for ranks that never come.
TrainStep::~TrainStep() {
  if (std::uncaught_exceptions() > 0)
    return;
  try {
    stop_if_left_out(late_.wait());
  } catch (const std::exception& error) {
    log_error(error.what());
  }
}

void TrainStep::step_optimizers() {
  const Span span("optimizer");
  if (is_late_) {
    for (optim::DeviceStep* const optimizer : device_steps_)
      optimizer->step_unless(late_.leaves_out());
  } else {
    for (Optimizer* const optimizer : optimizers_)
      optimizer->step();
  }
  at::autocast::clear_cache();  // a guard around the loop would go on with the weights of before
}

// The schedules step after the optimizers, as in PyTorch.
void TrainStep::count_step() {
  for (Schedule* schedule : options_.schedule)
    schedule->step();
  for (Ema* ema : options_.ema)
    ema->update();
  ++steps_;
  returns_ = 0;
  if (!counted_before_)
    counted_before_ = ResumedTraining::of_process().step();
  note_step(*counted_before_ + steps_);
}

// Hooks keep gradients for later steps, in units of the loss scale. The scale's value is asked for
// only if there are such hooks, since that waits for the device.
void TrainStep::update_scale() {
  std::vector<Hook> hooks = mapped(models_.reducers(), &GradientReducer::hook);
  std::erase_if(hooks, [](const Hook& hook) { return !hook || !hook->remembers(); });
  if (hooks.empty())
    return options_.precision->update_scale();
  const double before = options_.precision->scale_value();
  options_.precision->update_scale();
  const double factor = options_.precision->scale_value() / before;
  if (factor == 1)
    return;
  for (const Hook& hook : hooks)
    hook->rescale(factor);
}

// Refuses a step that asks whether all gradients are finite, inside of join(): ranks without inputs
// would not come to the question.
void TrainStep::check_outside_of_join() const {
  const bool asks_others = waits() && group_ && group_->size() > 1;
  if (!asks_others || !RanksShadow::here())
    return;
  throw failed_precondition(
      "train step: expected to be outside of join(), as ranks without inputs take part "
      "in no agreement on gradients that are not finite, got a step inside of it",
      place(),
      "; set .stop_together of join(), give all ranks the same number of inputs",
      scales() ? "" : ", or set .on_nonfinite = muster::OnNonfinite::ignore");
}

// Gradients that stay would be added to those of the next step.
void TrainStep::end() {
  for (const Tensor& parameter : parameters_)
    parameter.mutable_grad().reset();
  left_.clear();
  counts_.clear();
  in_step_ = false;
}

SavedState TrainStep::state() const {
  stop_if_left_out(late_.wait());
  SavedState state;
  state.numbers = {{"steps", as_number(steps_)}, {"skipped", as_number(skipped_)}};
  if (counts_.unit() > 0)
    state.numbers["loss_unit"] = counts_.unit();
  return state;
}

// The saved count has all steps of the training, so nothing is missing.
void TrainStep::load_state(const SavedState& state) {
  const int64_t steps = state.whole_number("train step", "steps");
  skipped_ = state.whole_number("train step", "skipped");
  steps_ = steps;
  counted_before_ = 0;
  counts_.set_unit(find_or(state.numbers, "loss_unit"));
}

// A tensor's version grows with every change in place.
std::vector<TrainStep::Mark> TrainStep::marks() const {
  std::vector<Mark> found;
  for (const Tensor& parameter : parameters_) {
    const Tensor& gradient = parameter.grad();
    const int64_t version = gradient.defined() ? gradient._version() : kNoGradient;
    found.push_back({.gradient = gradient.unsafeGetTensorImpl(), .version = version});
  }
  return found;
}

// Returns " (rank 1, step 7)" for messages; steps count from 1.
std::string TrainStep::place() const {
  const int64_t step = steps_ + skipped_ + 1;
  const std::string rank = group_ ? cat("rank ", group_->rank(), ", ") : "";
  return cat(" (", rank, "step ", step, ")");
}

}  // namespace muster
