// The training step with nothing in it that can be forgotten: reduction at the last micro-batch only, weights
// of uneven batches, autocast, the loss scale, clipping of true gradients, a step that all ranks take or
// none, fresh gradients, schedules, averages.
//
//   muster::TrainStep step(model, optimizer, {.precision = &precision, .clip_norm = 1.0, .schedule =
//   &schedule}); for (const auto& batch : loader)
//     auto loss = step(batch, [&] { return torch::cross_entropy_loss(model(batch.features), batch.labels);
//     });
//
// A GAN has a step for each of its two models: `.frozen` of one names the other. Of a batch it knows `weight`
// and `last` (data/loader.h) alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/train/ema.h"
#include "muster/train/precision.h"
#include "muster/train/schedule.h"
#include "muster/train/several.h"
#include "muster/train/step_model.h"

namespace muster {

// What is done with a step one of whose gradients is NaN or an infinity.
enum class OnNonfinite {
  stop,     // an error that names parameters; they are as before
  skip,     // on all ranks: no step of optimizers, schedules and averages
  go_back,  // the same, and TrainStepOptions::go_back brings an earlier state back
  ignore    // the step is taken. Saves waiting for the GPU, and, over several ranks, a small all_reduce
};

struct TrainStepOptions {
  // With fp16 a step whose gradients are not finite is left out and the scale shrinks, whatever on_nonfinite
  // says; stop is an error then once the scale is down to 1. One Precision for each TrainStep.
  Precision* precision = nullptr;
  std::optional<double> clip_value = {};  // done first
  // Over all of the optimizers' parameters. Gradients of ignored_parameters, which are each rank's own, are
  // left out, so that the norm is the same on all ranks, and clipped by their own norm together.
  std::optional<double> clip_norm = {};
  // In place of clip_norm, where each rank has a part of the gradients: clips by a norm that the ranks form
  // together, and returns it: [&] { return sharded.clip_grad_norm(1.0); }. All ranks of `group` call it, or
  // none.
  std::function<at::Tensor()> clip = {};
  Several<Schedule> schedule = {};
  Several<Ema> ema = {};
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  // For OnNonfinite::go_back, called on all ranks: [&] { checkpoints.go_back(10); }. The third time without a
  // step in between is an error.
  std::function<void()> go_back = {};
  // Models that the loss goes through and that another step trains: their parameters want no gradients
  // meanwhile, which also saves computing and reducing these.
  StepModels frozen = {};
  // The ranks that take a step together or not at all; without it those of the first wrapped model.
  std::optional<ProcessGroup> group = {};
};

class TrainStep {
 public:
  // All that is given must outlive it. Throws: invalid_argument without an optimizer, for one that has
  // parameters of a frozen model, for clip beside clip_norm, for go_back without its function, and for
  // sharded gradients with clip_norm or without a group.
  TrainStep(StepModels models, Several<torch::optim::Optimizer> optimizers,
            const TrainStepOptions& options = {});
  TrainStep(const TrainStep&) = delete;
  TrainStep& operator=(const TrainStep&) = delete;

  // One micro-batch: `loss_of()` gives its mean loss, and at the batch that is the step's last the optimizers
  // take their step. Gradients begin from nothing at a step's first. Returns the loss, detached, without the
  // batch's weight. Collective as the models' forward and backward are, and one small all_reduce a step
  // (on_nonfinite). Blocking: for the GPU, once a step, unless on_nonfinite is ignore. Throws:
  // failed_precondition for gradients that are not finite (stop), and for gradients that others have changed
  // between micro-batches, and inside of join() where ranks shadow (unless on_nonfinite is ignore, without a
  // loss scale); what loss_of and backward throw. After an error the next batch begins a new step.
  template <class Batch, class Function>
  at::Tensor operator()(const Batch& batch, Function&& loss_of) {
    return run(batch.weight, batch.last, std::forward<Function>(loss_of));
  }
  // The same with a batch's two values.
  at::Tensor run(double weight, bool last, const std::function<at::Tensor()>& loss_of);

  int64_t steps() const { return steps_; }      // that were taken
  int64_t skipped() const { return skipped_; }  // that were not, their gradients not being finite
  // Both counts: a run that goes on counts on. The parts that it was given have states of their own.
  SavedState state() const;
  void load_state(const SavedState& state);

  // What the last step's gradients had before clip_norm, without ignored_parameters, or what `clip` returned;
  // undefined without both.
  const at::Tensor& grad_norm() const { return grad_norm_; }

 private:
  // A gradient as it was left: another object or version means that somebody else has written to it.
  struct Mark {
    const c10::TensorImpl* gradient;
    uint32_t version;
    friend bool operator==(const Mark&, const Mark&) = default;
  };

  void begin();
  void check_untouched() const;
  at::Tensor backward(double weight, bool last, const std::function<at::Tensor()>& loss_of);
  void finish();
  bool clip_and_check();
  at::Tensor nonfinite_values() const;
  bool agree_on_nonfinite(at::Tensor found);
  void check_outside_of_join() const;
  void update_scale();
  void end();
  void take();
  void leave_out();
  [[noreturn]] void stop_at_nonfinite() const;
  std::vector<Mark> marks() const;
  std::string place() const;
  bool scales() const { return options_.precision != nullptr && options_.precision->scales(); }

  StepModels models_;
  Several<torch::optim::Optimizer> optimizers_;
  TrainStepOptions options_;
  std::optional<ProcessGroup> group_;                           // of the first wrapped model
  std::vector<at::Tensor> parameters_;                          // of all optimizers, each once
  std::vector<at::Tensor> shared_parameters_, own_parameters_;  // the same: own are ignored_parameters
  std::vector<Mark> left_;                                      // by the micro-batch before
  bool in_step_ = false;
  int64_t scale_updates_ = 0;
  int64_t steps_ = 0;
  int64_t skipped_ = 0;
  int returns_ = 0;  // to an earlier state, without a step since
  at::Tensor grad_norm_;
};

}  // namespace muster
