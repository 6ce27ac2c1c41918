// What a training step does about gradients that are not finite: it asks, the ranks agree, and the
// step is taken, skipped or an error. On a GPU, optimizers that can leave a step out on the device
// make the decision late: the GPU decides, and the host reads some steps later what it was
// (LateFindings).
#include <ATen/Functions.h>

#include <cstdint>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/optim/parts.h"
#include "muster/trace/span.h"
#include "muster/train/clip.h"
#include "muster/train/device_copy.h"
#include "muster/train/gradients.h"
#include "muster/train/step.h"

namespace muster {

namespace {

constexpr int kMostReturns = 3;  // times gone back without a step in between

// Waits for the device; called only before an error.
bool has_nonfinite(const Tensor& gradient) {
  if (!gradient.defined())
    return false;
  const Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return !values.isfinite().all().item<bool>();
}

}  // namespace

// The GPU decides on a step if the host need not know before the next one what it was. Skipping
// and going back are for all ranks in the same step. All that the decision needs is on one GPU.
bool TrainStep::decides_late() const {
  if (scales() || options_.on_nonfinite != OnNonfinite::stop || device_steps_.empty())
    return false;
  const Device device = loss_.device();
  bool has_gradients = false;
  for (const Tensor& parameter : parameters_) {
    if (!parameter.grad().defined())
      continue;
    has_gradients = true;
    if (!device.is_cuda() || parameter.device() != device)
      return false;
  }
  return has_gradients && all_of(device_steps_, &optim::DeviceStep::can_leave_out);
}

// The loss of a GPU is told when the GPU has come to it. What the GPU has decided is news for a
// rank alone as soon as it is there; several ranks take it up in the same step.
void TrainStep::tell_of_earlier_steps() {
  if (loss_.is_cpu())
    note_loss(loss_.item<double>());
  const auto newest = late_.newest();
  if (newest)
    note_loss(newest->loss);
  const auto due = late_.due();
  const bool is_alone = !group_ || group_->size() == 1;
  const auto& told = is_alone && newest ? newest : due;
  if (told && told->left_out > 0)
    stop_if_left_out(late_.wait());
}

// The steps that the GPU has left out were counted as taken.
void TrainStep::stop_if_left_out(int64_t steps) const {
  if (steps == 0)
    return;
  for (optim::DeviceStep* const optimizer : device_steps_)
    optimizer->take_back(steps);
  late_.clear();
  steps_ -= steps;
  const int64_t bad = steps_ + skipped_ + 1;
  stop_at_nonfinite(cat("in step ",
                        bad,
                        "; the GPU has left out the ",
                        steps,
                        " step(s) from there on, and the last had "));
}

// Returns false if the step is not to be taken. The ranks agree on it once, by the loss scale, by
// the gradients' values, or by their norm where that is wanted anyway.
bool TrainStep::clip_and_check() {
  const bool checks = !scales() && waits();
  if (scales()) {
    options_.precision->unscale(parameters_, group_);
    if (options_.precision->found_nonfinite(parameters_))
      return false;
  }
  // The values are looked at before they are clipped, which would make an infinity a finite number.
  const bool by_norm = options_.clip_norm && !options_.clip_value;
  if (checks && !by_norm && !agree_on_nonfinite(nonfinite_values()))
    return false;
  if (options_.clip_value)
    clip_grad_value(parameters_, *options_.clip_value);
  if (options_.clip)
    grad_norm_ = options_.clip();
  if (!options_.clip_norm)
    return true;
  grad_norm_ = muster::grad_norm(shared_parameters_);
  const Tensor own_norm = muster::grad_norm(own_parameters_);
  // The norms are not finite if a gradient is not.
  const Tensor either =
      own_parameters_.empty() ? grad_norm_ : grad_norm_ + copied_to(grad_norm_.device(), own_norm);
  if (checks && by_norm && !agree_on_nonfinite(either.isfinite().logical_not().to(kFloat)))
    return false;
  clip_grads_with_norm(shared_parameters_, *options_.clip_norm, grad_norm_);
  clip_grads_with_norm(own_parameters_, *options_.clip_norm, own_norm);
  return true;
}

// Returns 1 if a gradient is not finite, else 0, on the gradients' device. Multiplying by 1 changes
// no bit.
Tensor TrainStep::nonfinite_values() const {
  const auto gradients = gradient_values(parameters_);
  if (gradients.empty())
    return at::zeros({});
  return multiply_and_find_nonfinite(gradients, at::ones({}, gradients[0].options().dtype(kFloat)));
}

// Returns whether the gradients of all ranks are finite, or true if the GPU decides.
bool TrainStep::agree_on_nonfinite(Tensor found) {
  if (group_ && !ranks_find_the_same())
    group_->all_reduce(found, ReduceOp::max);
  if (!is_late_)
    return found.item<float>() == 0;
  late_.add(found);
  return true;
}

// An average over the same ranks is the same number on all of them. A hook may leave each rank with
// another one, and without reduction (no_sync) there is no average.
bool TrainStep::ranks_find_the_same() const {
  if (options_.group || options_.unreduced || !all_are_averaged_)
    return false;
  return all_of(models_, [&](const StepModel& model) {
    GradientReducer* const reducer = model.reducer();
    if (reducer == nullptr)
      return true;
    return reducer->reduces() && !reducer->hook() && reducer->group().c10d() == group_->c10d();
  });
}

// A loss scale that no longer shrinks is of no use to the steps that follow, which skipping is for.
bool TrainStep::stops_at_nonfinite() const {
  if (options_.on_nonfinite == OnNonfinite::stop)
    return true;
  return scales() && options_.on_nonfinite != OnNonfinite::go_back;
}

// Goes back if that is asked for, but not for ever: a training that is thrown back without a step
// in between does not get further.
void TrainStep::leave_out(bool scale_shrinks) {
  ++skipped_;
  if (options_.on_nonfinite != OnNonfinite::go_back || scale_shrinks)
    return;
  if (++returns_ == kMostReturns)
    stop_at_nonfinite("");
  options_.go_back();
}

// The parameters are named, since the first bad layer is the best hint. `when` says in which step,
// if it was not this one.
void TrainStep::stop_at_nonfinite(const std::string& when) const {
  Strings names;
  bool has_gradients = false;
  for (const StepModel& model : models_) {
    for (const auto& item : model.module().named_parameters()) {
      const Tensor& parameter = item.value();
      has_gradients = has_gradients || parameter.grad().defined();
      if (!optim::has_divided_gradient(parameter) && has_nonfinite(parameter.grad()))
        names.push_back(item.key());
    }
  }
  std::string where = when.empty() ? "on another rank, or as their norm" : "none";
  if (!when.empty() && !has_gradients)
    where = "gradients that are gone by now";
  if (!names.empty())
    where = cat(when.empty() ? "in " : "some in ", join_first(names, ", ", 3));
  const char* const next =
      scales()
          ? "a loss scale of 1 does not help, so look at the data, or use bf16 or fp32"
          : "lower the learning rate, look at the data, or set .on_nonfinite = skip or go_back";
  throw failed_precondition("train step: expected finite gradients, got NaN or an infinity ",
                            when,
                            where,
                            place(),
                            "; ",
                            next);
}

}  // namespace muster
