// Tensor parallel along the mesh's axis tp: each of its ranks has a part of every layer
// (../parallel.h), and all see the same samples. Data parallel along dp.
#pragma once

#include "../parallel.h"
#include "way.h"

class TensorParallel : public Way {
 public:
  TensorParallel(Gpt net, const Options& options, muster::Context& ctx, muster::Mesh mesh)
      : Way(mesh.group("dp")),
        net_(std::move(net)),
        device_(ctx.device()),
        clip_(options.clip),
        mesh_(std::move(mesh)),
        model_(on_device(
            ParallelGpt(net_, mesh_.group("tp"), ParallelGptOptions{.sequence = options.sequence}),
            device_)),
        optimizer_(parameter_groups(muster::distinct_parameters(*model_), options),
                   adamw(options)) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  void add_to(muster::Checkpoints& checkpoints) override {
    const auto pieces = muster::parallel_pieces(*model_);
    checkpoints.add("model", pieces).add("optimizer", optimizer_, pieces);
  }

  void begin(const muster::TrainStepOptions& options, int64_t /*steps_done*/) override {
    muster::TrainStepOptions step = options;
    step.group = mesh_.all();
    step.clip = [this, parameters = muster::parallel_parameters(*model_)] {
      const auto norm =
          muster::parallel_grad_norm(parameters.divided, parameters.replicated, mesh_.group("tp"));
      muster::clip_grads_with_norm(muster::distinct_parameters(*model_), clip_, norm);
      return norm;
    };
    replicated_.emplace(model_, replicas_);
    step_.emplace(*replicated_, optimizer_, step);
  }

  torch::Tensor step(const TextBatch& batch) override {
    return (*step_)(batch,
                    [&] { return model_->loss((*replicated_)(batch.tokens), batch.targets); });
  }

  std::shared_ptr<void> whole_model() override {
    return whole_on_device(net_, muster::gather_parameters(*model_), device_);
  }

 private:
  Gpt net_;  // in host memory
  torch::Device device_;
  double clip_;
  muster::Mesh mesh_;
  ParallelGpt model_;
  AdamW optimizer_;
  std::optional<muster::DistributedDataParallel<ParallelGpt>> replicated_;
  std::optional<muster::TrainStep> step_;
};
