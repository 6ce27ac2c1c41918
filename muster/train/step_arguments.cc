// Mistakes in what a step is given would train something else without an error: an optimizer of
// another model steps on gradients that are never there, and a bare model of several ranks trains
// each rank alone.
#include "muster/train/step_arguments.h"

#include <string>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/ddp/live_reducers.h"
#include "muster/optim/parts.h"
#include "muster/train/gradients.h"
#include "muster/train/step.h"

namespace muster {

namespace {

// The parameters of the models of which `is_wanted` is true. Tensors are told apart by their
// implementation.
template <class Predicate>
TensorImpls parameters_of_models(const StepModels& models, Predicate is_wanted) {
  TensorImpls parameters;
  for (const StepModel& model : models)
    if (is_wanted(model))
      for (const Tensor& parameter : model.module().parameters())
        parameters.insert(parameter.unsafeGetTensorImpl());
  return parameters;
}

TensorImpls wrapped_parameters(const StepModels& models) {
  return parameters_of_models(models,
                              [](const StepModel& model) { return model.reducer() != nullptr; });
}

// Whether a model is sharded. A rank may then have no piece of the parameters that one optimizer
// steps on.
bool has_divided_gradients(const StepModels& models) {
  return any_of(models, [](const StepModel& model) {
    return any_of(model.module().parameters(), optim::has_divided_gradient);
  });
}

// Returns "'fc.weight'", or the shape of a parameter that no model has.
std::string name_in(const StepModels& models, const Tensor& parameter) {
  for (const StepModel& model : models)
    for (const auto& item : model.module().named_parameters())
      if (item.value().is_same(parameter))
        return in_quotes(item.key());
  return cat(shape_as_name(parameter), " that the models do not have");
}

}  // namespace

void check_each_once(const StepModels& models, const Tensors& parameters) {
  require_each_once("train step", parameters, [&](const Tensor& parameter) {
    return name_in(models, parameter);
  });
}

void check_trains_models(const StepModels& models, const Optimizers& optimizers) {
  const TensorImpls of_models = parameters_of_models(models, [](const StepModel&) { return true; });
  const auto is_of_models = [&](const Tensor& parameter) {
    return of_models.contains(parameter.unsafeGetTensorImpl()) ||
           optim::has_divided_gradient(parameter);
  };
  size_t place = 0;
  for (Optimizer* optimizer : optimizers) {
    const auto parameters = parameters_of(*optimizer);
    const bool may_be_empty = parameters.empty() && has_divided_gradients(models);
    if (!may_be_empty && none_of(parameters, is_of_models)) {
      throw invalid_argument(
          "train step: expected optimizers of the models' parameters, got ",
          plural(parameters.size(), "parameter"),
          " in optimizer ",
          place,
          ", of which the models have none; make it of the model that this step trains");
    }
    ++place;
  }
}

bool are_all_wrapped(const StepModels& models, const Tensors& parameters) {
  const TensorImpls wrapped = wrapped_parameters(models);
  return all_of(parameters, [&](const Tensor& parameter) {
    return wrapped.contains(parameter.unsafeGetTensorImpl());
  });
}

// A sharded gradient is averaged where it is made. LiveReducer knows the wrapped models of other
// steps.
void check_reduced(const StepModels& models, const Tensors& parameters, int ranks) {
  if (ranks == 1)
    return;
  const TensorImpls wrapped = wrapped_parameters(models);
  for (const Tensor& parameter : parameters) {
    if (!parameter.requires_grad() || wrapped.contains(parameter.unsafeGetTensorImpl()))
      continue;
    if (optim::has_divided_gradient(parameter) || LiveReducer::any_has(parameter))
      continue;
    throw invalid_argument(
        "train step: expected gradients that are averaged over the ",
        ranks,
        " ranks, got ",
        name_in(models, parameter),
        ", which no wrapped model has; wrap its model in DistributedDataParallel and pass "
        "that, or set .unreduced if another part averages, or each rank is to train alone");
  }
}

// The norm of one rank's part is not that of the gradients, and whether they are finite is for all
// ranks to say.
void check_divided(const Tensors& parameters, const TrainStepOptions& options) {
  if (none_of(parameters, optim::has_divided_gradient))
    return;
  if (options.clip_norm) {
    throw invalid_argument(
        "train step: expected no clip_norm, got sharded gradients, of which each rank has "
        "a part; set .clip to what calls the sharded object's clip_grad_norm");
  }
  if (!options.group) {
    throw invalid_argument(
        "train step: expected a group, got sharded gradients, of which each rank has a "
        "part; pass .group, that of the parts");
  }
}

// The ranks of a divided layer have other parts of it, and all else alike.
void check_layer_parts(const Tensors& parameters, const TrainStepOptions& options) {
  if (none_of(parameters, optim::is_layer_part))
    return;
  if (options.clip_norm) {
    throw invalid_argument(
        "train step: expected no clip_norm, got parameters of divided layers, whose ranks "
        "would clip by different norms; set .clip to a call of parallel_grad_norm and "
        "clip_grads_with_norm");
  }
  const bool scales = options.precision != nullptr && options.precision->scales();
  const bool may_leave_out =
      scales || is_one_of(options.on_nonfinite, OnNonfinite::skip, OnNonfinite::go_back);
  const Ints agreeing = options.group ? options.group->job_ranks() : Ints();
  const auto agrees = [&](int rank) {
    return contains(agreeing, rank);
  };
  const bool all_agree = all_of(parameters, [&](const Tensor& parameter) {
    return all_of(optim::ranks_of_layer_parts(parameter), agrees);
  });
  if (!may_leave_out || all_agree)
    return;
  throw invalid_argument(
      "train step: expected a group of all ranks with parts of the divided layers, where fp16 or "
      ".on_nonfinite leaves steps out, got ",
      agreeing.empty() ? "none" : cat("that of ranks ", join(agreeing, ", ")),
      ", so that ranks would disagree on which steps to skip; pass .group, such as mesh.all()");
}

void check_way_back(const TrainStepOptions& options) {
  const bool goes_back = options.on_nonfinite == OnNonfinite::go_back;
  const bool has_function = options.go_back != nullptr;
  if (goes_back == has_function)
    return;
  throw invalid_argument(
      "train step: expected .go_back beside OnNonfinite::go_back and nowhere else, got ",
      has_function ? "it with another .on_nonfinite" : "none",
      "; give [&] { checkpoints.go_back(10); }");
}

// Such a schedule would change another step's rates as often as this one steps.
void check_schedules(const Several<Schedule>& schedules, const Optimizers& optimizers) {
  for (Schedule* const schedule : schedules) {
    const bool is_of_these = any_of(optimizers, [&](const Optimizer* optimizer) {
      return optimizer == &schedule->optimizer();
    });
    if (is_of_these)
      continue;
    throw invalid_argument(
        "train step: expected schedules of its own optimizers, got one of another; give "
        "each TrainStep the schedules of what it steps");
  }
}

}  // namespace muster
