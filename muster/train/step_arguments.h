// The arguments of a TrainStep must fit together: its optimizers train its models, each weight
// once, its options suit them, and somebody averages the gradients over the ranks. Used only by
// step.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "muster/base/tensors.h"
#include "muster/train/schedule.h"
#include "muster/train/several.h"
#include "muster/train/step_model.h"

namespace muster {

struct TrainStepOptions;

// Throws: invalid_argument for a weight that the optimizers' `parameters` have twice: they would
// step on it twice.
void check_each_once(const StepModels& models, const Tensors& parameters);

// Throws: invalid_argument for an optimizer that has no parameter of the models.
void check_trains_models(const StepModels& models, const Optimizers& optimizers);

// Whether wrapped models have all of these parameters.
bool are_all_wrapped(const StepModels& models, const Tensors& parameters);

// Throws: invalid_argument in a job of several `ranks` for a parameter whose gradient no wrapped or
// sharded model reduces.
void check_reduced(const StepModels& models, const Tensors& parameters, int ranks);

// Throws: invalid_argument for options that would look at this rank's part of sharded gradients or
// of divided layers.
void check_divided(const Tensors& parameters, const TrainStepOptions& options);
void check_layer_parts(const Tensors& parameters, const TrainStepOptions& options);

// Throws: invalid_argument for OnNonfinite::go_back without its function, or the other way round.
void check_way_back(const TrainStepOptions& options);

// Throws: invalid_argument for a schedule of another optimizer.
void check_schedules(const Several<Schedule>& schedules, const Optimizers& optimizers);

}  // namespace muster
