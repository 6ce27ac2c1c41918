// TrainStep as a CUDA graph: after some steps that run as usual, the whole step (forward, loss,
// backward, sums over the ranks, clipping, optimizers) is captured once, and each later step is one
// launch. That saves the host's work, of which small models on a fast GPU have too much.
//
//   muster::GraphedStep step(model, optimizer, {.clip_norm = 1.0, .schedule = &schedule});
//   for (const auto& batch : loader)
//     auto loss = step(batch, [&](const auto& batch) {
//       return loss_of(model(batch.features), batch.labels);
//     });
//
// The function computes with the batch that it is given, whose tensors are the graph's own. It is
// called in the first steps alone: what it does on the host (counting, printing, choosing) is not
// done again, and tensors that it uses beside the batch and the models have to keep their memory.
// Dropout draws anew in every step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/comm/nccl/gpu_graph.h"
#include "muster/data/batch.h"
#include "muster/data/collate.h"
#include "muster/optim/device_step.h"
#include "muster/train/ema.h"
#include "muster/train/several.h"
#include "muster/train/step.h"
#include "muster/train/step_model.h"

namespace muster {

class GraphedStep : NoCopy {
 public:
  // The arguments are TrainStep's. The optimizers are of muster::optim; their rates are rounded to
  // float32 from now on, also in other steps. On the CPU all steps run as TrainStep's, and a line
  // of the log says so. Throws: as TrainStep; invalid_argument for what a graph cannot have: other
  // optimizers, a loss scale (fp16), on_nonfinite skip or go_back, `clip`, parameters on several
  // devices, a wrapped model with find_unused_parameters, static_graph, a hook, verify_every,
  // BucketCap::automatic() or a backend other than NCCL, and `unreduced` in a job of several ranks
  // without a group.
  GraphedStep(StepModels models, Optimizers optimizers, const TrainStepOptions& options = {});
  ~GraphedStep();

  // Runs a step, and returns the loss as TrainStep does: a tensor of the caller's own.
  //
  // The first kWarmUpSteps steps run as usual, on a stream of this object. The next one is captured
  // for the first step's shapes. From then on a step with these shapes is a replay. One with fewer
  // rows, or a weight other than 1, runs as usual on all ranks: the last batch of an epoch does. If
  // memory, options or training modes of models or optimizers have changed (a checkpoint was
  // loaded), the steps begin anew with the first ones.
  //
  // Collective: as TrainStep, and a small exchange between the hosts in each step. Blocking: for
  // the GPU, in the step that captures. Throws: as TrainStep; invalid_argument for tensors of other
  // shapes, types or devices, and for a batch that is not its step's only one (gradient
  // accumulation); failed_precondition where the step waits for the GPU or does what cannot be
  // captured (this object then does nothing more), and inside of join().
  template <class Data, class Function>
    requires std::convertible_to<std::invoke_result_t<Function&, const Batch<Data>&>, at::Tensor>
  at::Tensor operator()(const Batch<Data>& batch, Function&& loss_of) {
    static_assert(is_of_tensors<Data>(),
                  "GraphedStep takes a batch of tensors alone: a graph would keep text and numbers "
                  "as they were when it was captured; make them tensors, or use TrainStep");
    Batch<Data> given = batch;
    given.sample_indices.clear();  // of one batch alone
    Tensors inputs;
    for_each_tensor(static_cast<Data&>(given),
                    [&](const at::Tensor& tensor) { inputs.push_back(tensor); });
    const auto on_inputs = [&](const Tensors& tensors) -> at::Tensor {
      size_t next = 0;
      for_each_tensor(static_cast<Data&>(given),
                      [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
      return loss_of(std::as_const(given));
    };
    return run(batch.weight, batch.last, inputs, on_inputs);
  }

  using LossOfInputs = std::function<at::Tensor(const Tensors&)>;
  // Runs a step on tensors, by the two values of a batch.
  at::Tensor run(double weight, bool last, const Tensors& inputs, const LossOfInputs& loss_of);

  static constexpr int64_t kWarmUpSteps = 11;  // DDP measures its first ten, which waits

  int64_t steps() const { return step_->steps(); }  // as TrainStep
  int64_t replays() const { return replays_; }      // steps of this object that were replays
  // As TrainStep. Blocking: for the GPU.
  SavedState state() const;
  void load_state(const SavedState& state) { step_->load_state(state); }
  // Of the last step, as TrainStep: a tensor of the caller's own.
  const at::Tensor& grad_norm() const { return step_->grad_norm(); }

 private:
  enum class Way { replay, as_usual, begin_anew };  // the later one wins, over the ranks

  void check_options(const TrainStepOptions& options) const;
  void check_models() const;
  void check_inputs(bool last, const Tensors& inputs);
  Way way_of(double weight, const Tensors& inputs);
  Way agree(Way mine);
  at::Tensor run_on_side(const c10::Stream& users,
                         double weight,
                         const Tensors& inputs,
                         const LossOfInputs& loss_of);
  at::Tensor run_as_usual(double weight, const Tensors& inputs, const LossOfInputs& loss_of);
  void capture(const Tensors& inputs, const LossOfInputs& loss_of);
  [[noreturn]] void fail_capture(const std::string& what) const;
  void launch(const LossOfInputs& loss_of);
  at::Tensor replay(const Tensors& inputs);
  void forget_graph();
  void expect_buffers_to_differ() const;
  uint64_t num_reducers_made() const;
  void share_memory(const c10::Stream& stream) const;
  std::vector<uint64_t> description() const;
  std::string place() const { return step_->place(); }

  StepModels models_, frozen_;
  Optimizers optimizers_;
  Several<Ema> ema_;
  c10::Device device_;
  std::unique_ptr<TrainStep> step_;
  std::vector<optim::DeviceStep*> device_steps_;
  std::optional<c10::Stream> side_;  // none on the CPU

  Tensors first_;  // the shapes and types of the first batch
  int64_t warm_ups_ = 0;
  int64_t replays_ = 0;
  int64_t graphs_forgotten_ = 0;
  bool told_of_fewer_ = false;
  bool broken_ = false;  // by a capture that failed

  // Of the graph, while there is one.
  Tensors inputs_;
  std::unique_ptr<GpuGraph> graph_;
  std::vector<std::shared_ptr<optim::GraphNumbers>> numbers_;  // of each optimizer
  at::Tensor loss_, grad_norm_;
  std::vector<uint64_t> described_;
};

}  // namespace muster
