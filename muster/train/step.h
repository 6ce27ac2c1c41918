// A complete training step: it reduces only at the last micro-batch, weights uneven batches, uses
// autocast and the loss scale, clips unscaled gradients, steps on all ranks or on none, clears
// gradients, and updates schedules and averages.
//
//   muster::TrainStep step(model, optimizer,
//                          {.precision = &precision, .clip_norm = 1.0, .schedule = &schedule});
//   for (const auto& batch : loader)
//     auto loss = step(batch, [&] { return loss_of(model(batch.features), batch.labels); });
//
// A GAN uses one step for each of its two models; `.frozen` of each names the other. A batch needs
// only `weight` and `last` (data/loader.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/never.h"
#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/optim/device_step.h"
#include "muster/train/ema.h"
#include "muster/train/late_findings.h"
#include "muster/train/precision.h"
#include "muster/train/schedule.h"
#include "muster/train/several.h"
#include "muster/train/step_model.h"
#include "muster/train/summed_loss.h"

namespace muster {

// The ways to treat a step in which a gradient is NaN or infinite.
enum class OnNonfinite {
  // Throw an error that names the parameters, which stay unchanged. On a GPU, with optimizers of
  // muster::optim, a step up to eight later throws it, the same on all ranks: the GPU leaves out
  // all steps from the bad one on, and the host does not wait to know. Schedules and averages have
  // gone on then.
  stop,
  skip,     // skip it on all ranks: no step of optimizers, schedules or averages
  go_back,  // skip it, and restore an earlier state by TrainStepOptions::go_back
  ignore    // take the step
};

struct TrainStepOptions {
  // With fp16, a step with non-finite gradients is skipped and the scale shrinks, whatever
  // on_nonfinite says. Once the scale is down to 1 such a step is an error, or goes back. Each
  // TrainStep needs its own Precision.
  Precision* precision = nullptr;
  std::optional<double> clip_value{};  // applied first
  // The norm over all of the optimizers' parameters. Gradients of ignored_parameters differ between
  // ranks, so they are left out (the norm is then the same on all ranks) and clipped together by
  // their own norm.
  std::optional<double> clip_norm{};
  // Replaces clip_norm if each rank has only a part of the gradients. It clips by a norm that the
  // ranks compute together, and returns the norm: [&] { return sharded.clip_grad_norm(1.0); }. All
  // ranks of `group` call it, or none.
  std::function<at::Tensor()> clip{};
  Several<Schedule> schedule{};
  Several<Ema> ema{};
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  // For OnNonfinite::go_back, called on all ranks: [&] { checkpoints.go_back(10); }. Going back a
  // third time without a step in between is an error.
  std::function<void()> go_back{};
  // Models that the loss passes through but another step trains. Their parameters get no gradients
  // meanwhile, which also saves computing and reducing these.
  StepModels frozen{};
  // The ranks that take a step together or not at all. Default: the group of the first wrapped
  // model.
  std::optional<ProcessGroup> group{};
  // Says that in a job of several ranks no wrapped or sharded model averages the gradients of these
  // optimizers: another part does (LocalSGD, a parameter server, tensor parallelism), or each rank
  // trains alone.
  bool unreduced = false;
};

// What a loader gives, or another type with these two.
template <class Batch>
concept IsBatch = requires(const Batch& batch) {
  { batch.weight } -> std::convertible_to<double>;
  { batch.last } -> std::convertible_to<bool>;
};

// Returns the mean loss of a batch.
template <class Function>
concept GivesLoss = std::convertible_to<Function, std::function<at::Tensor()>>;

// Returns the sum of a batch's losses, and their number.
template <class Function>
concept GivesSummedLoss = std::convertible_to<Function, std::function<SummedLoss()>>;

class TrainStep : NoCopy {
 public:
  // All arguments must outlive this object. An optimizer may get more parameters between steps.
  // Throws: invalid_argument without an optimizer, for a schedule of another optimizer, for an
  // optimizer without parameters of the models or with those of a frozen one, for a parameter that
  // the optimizers have twice, in a job of several ranks for one that no wrapped or sharded model
  // has (unless `unreduced`), for clip together with clip_norm, for go_back without its function,
  // for sharded gradients with clip_norm or without a group, and for divided layers whose steps may
  // be left out without a group of all their ranks.
  TrainStep(StepModels models, Optimizers optimizers, const TrainStepOptions& options = {});
  // Logs an error for gradients that were not finite and that no call has told of yet. Blocking:
  // for the GPU.
  ~TrainStep();

  // Runs one micro-batch: `loss_of()` returns its mean loss, and at a step's last batch the
  // optimizers step. Gradients are cleared at the start of a step. Returns the loss, detached,
  // without the batch's weight. After an error the next batch starts a new step.
  // Collective: as the models' forward and backward, plus one small all_reduce per step
  // (on_nonfinite), unless the models' own averages make all gradients equal. Then the hosts
  // exchange some bytes in the first step and in every hundredth.
  // Blocking: for the GPU, once per step. It does not wait with on_nonfinite ignore, nor with stop
  // if all optimizers are of muster::optim and the loss and all parameters are on one GPU; a loss
  // scale (fp16) makes it wait in any case.
  // Throws: failed_precondition for non-finite gradients (stop), for gradients changed by others
  // between micro-batches or cleared by loss_of, for a model that an earlier micro-batch of the
  // step went through and the last did not, for learning rates that differ between ranks, and
  // inside join() while ranks shadow (unless on_nonfinite is ignore, without a loss scale);
  // whatever loss_of and backward throw.
  template <IsBatch Batch, GivesLoss Function>
  at::Tensor operator()(const Batch& batch, Function&& loss_of) {
    return run(batch.weight, batch.last, std::forward<Function>(loss_of));
  }
  // The same for a sum of losses: the step's gradients are those of the mean over all losses of its
  // micro-batches and ranks, however they are spread. The batch's weight does not count, unless it
  // is 0. Returns the mean of this batch's losses, detached. Collective: plus one all_reduce of a
  // number per step, and one in the first. Throws: failed_precondition for a step with both kinds
  // of losses, and inside join() while ranks shadow.
  template <IsBatch Batch, GivesSummedLoss Function>
  at::Tensor operator()(const Batch& batch, Function&& loss_of) {
    return run_sum(batch.weight, batch.last, std::forward<Function>(loss_of));
  }
  // What is no batch or no loss: the text is the compiler's whole answer.
  template <class Batch, class Function>
    requires(!IsBatch<Batch> || !(GivesLoss<Function> || GivesSummedLoss<Function>))
  at::Tensor operator()(const Batch& /*batch*/, Function&& /*loss_of*/) {
    static_assert(
        kNever<Batch, Function>,
        "TrainStep takes a batch with weight and last, and a function that returns the loss: "
        "step(batch, [&] { return loss_of(model(batch.features), batch.labels); })");
    return {};
  }
  // Runs one micro-batch by the two values of a batch.
  at::Tensor run(double weight, bool last, const std::function<at::Tensor()>& loss_of);
  at::Tensor run_sum(double weight, bool last, const std::function<SummedLoss()>& loss_of);

  // Steps taken by this object. What `muster top` and `muster report` show goes on from the step
  // that the run was resumed after.
  int64_t steps() const { return steps_; }
  int64_t skipped() const { return skipped_; }  // steps skipped because of non-finite gradients
  // Both counts, so that a resumed run continues counting. The parts passed to the step save their
  // own states. Blocking: for the GPU. Throws: failed_precondition if the last steps had gradients
  // that are not finite (stop).
  SavedState state() const;
  void load_state(const SavedState& state);

  // The norm of the last step's gradients before clip_norm (without ignored_parameters), or what
  // `clip` returned; undefined without both.
  const at::Tensor& grad_norm() const { return grad_norm_; }

 private:
  friend class GraphedStep;  // which captures parts of a step

  // A gradient as this object left it: another tensor or version means that someone else has
  // written to it.
  struct Mark {
    const c10::TensorImpl* gradient;
    int64_t version;
    friend bool operator==(const Mark&, const Mark&) = default;
  };

  // What the gradients are of, and the loss that is shown.
  struct MicroLoss {
    at::Tensor loss;
    at::Tensor shown;
  };

  void take_parameters();
  at::Tensor run_micro_batch(double weight, bool last, const std::function<MicroLoss()>& loss_of);
  void begin();
  void check_untouched() const;
  void check_kept() const;
  at::Tensor backward(double weight, bool last, const std::function<MicroLoss()>& loss_of);
  void check_all_reduced() const;
  void compare_rates();
  void finish();
  void check_one_kind(bool is_sum) const;
  void check_no_sum_in_join() const;
  void divide_by_counts();
  std::optional<ProcessGroup> group_of_counts() const;
  bool clip_and_check();
  at::Tensor nonfinite_values() const;
  bool agree_on_nonfinite(at::Tensor found);
  bool ranks_find_the_same() const;
  bool decides_late() const;
  void tell_of_earlier_steps();
  void stop_if_left_out(int64_t steps) const;
  void check_outside_of_join() const;
  void update_scale();
  void end();
  void step_optimizers();
  void count_step();
  void leave_out(bool scale_shrinks);
  bool stops_at_nonfinite() const;
  [[noreturn]] void stop_at_nonfinite(const std::string& when) const;
  std::vector<Mark> marks() const;
  std::string place() const;
  bool scales() const { return options_.precision != nullptr && options_.precision->scales(); }
  // For the GPU, to know whether the gradients are finite.
  bool waits() const { return scales() || options_.on_nonfinite != OnNonfinite::ignore; }

  StepModels models_;
  Optimizers optimizers_;
  TrainStepOptions options_;
  std::optional<ProcessGroup> group_;  // of the first wrapped model
  Tensors parameters_;                 // of all optimizers, each once
  Tensors shared_parameters_,
      own_parameters_;             // the same, split: own are ignored_parameters
  std::vector<Mark> left_;         // by the previous micro-batch
  bool all_are_averaged_ = false;  // wrapped models average all gradients of the optimizers
  std::vector<optim::DeviceStep*> device_steps_;  // of all optimizers; none if one cannot
  bool is_late_ = false;                          // this step is decided on the GPU
  mutable LateFindings late_;                     // steps whose findings the host has not read
  bool in_step_ = false;
  LossCounts counts_;     // of a step whose losses are sums
  int64_t finished_ = 0;  // steps of this object, left out or not
  int64_t scale_updates_ = 0;
  mutable int64_t steps_ = 0;
  int64_t skipped_ = 0;
  // Steps of the training that steps_ lacks: of a run that was resumed without this object's state.
  std::optional<int64_t> counted_before_;
  int returns_ = 0;  // times gone back without a step since
  at::Tensor loss_;  // of the last micro-batch
  at::Tensor grad_norm_;
};

}  // namespace muster
