// Data parallel: every rank has the model, and gradients are averaged over the ranks during
// backward.
#pragma once

#include "way.h"

class DataParallel : public Way {
 public:
  DataParallel(Gpt net, const Options& options, muster::Context& ctx)
      : Way(ctx.process_group()),
        net_(on_device(std::move(net), ctx.device())),
        clip_(options.clip),
        optimizer_(parameter_groups(muster::distinct_parameters(*net_), options), adamw(options)) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  void add_to(muster::Checkpoints& checkpoints) override {
    checkpoints.add("model", net_).add("optimizer", optimizer_);
  }

  void begin(const muster::TrainStepOptions& options, int64_t /*steps_done*/) override {
    muster::TrainStepOptions step = options;
    step.clip_norm = clip_;
    model_.emplace(net_, replicas_);
    step_.emplace(*model_, optimizer_, step);
  }

  torch::Tensor step(const TextBatch& batch) override {
    return (*step_)(batch, [&] { return next_token_loss((*model_)(batch.tokens), batch.targets); });
  }

  std::shared_ptr<void> whole_model() override { return nullptr; }  // it is

 private:
  Gpt net_;
  double clip_;
  AdamW optimizer_;
  std::optional<muster::DistributedDataParallel<Gpt>> model_;
  std::optional<muster::TrainStep> step_;
};
