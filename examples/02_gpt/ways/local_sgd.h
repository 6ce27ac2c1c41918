// Local SGD: every rank takes steps of its own, and every few steps the ranks average their models.
#pragma once

#include <muster/parallel/averaging/local_sgd.h>

#include "way.h"

class LocalSteps : public Way {
 public:
  LocalSteps(Gpt net, const Options& options, muster::Context& ctx)
      : Way(ctx.process_group()),
        net_(on_device(std::move(net), ctx.device())),
        clip_(options.clip),
        optimizer_(parameter_groups(muster::distinct_parameters(*net_), options), adamw(options)),
        local_(muster::distinct_parameters(*net_), replicas_, {.every = options.local_sgd}) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  // Each rank's own.
  void add_to(muster::Checkpoints& checkpoints) override {
    const auto pieces = muster::own_pieces(*net_);
    checkpoints.add("model", pieces).add("optimizer", optimizer_, pieces);
  }

  void begin(const muster::TrainStepOptions& options, int64_t steps_done) override {
    local_.load_state({.numbers = {{"steps", muster::as_number(steps_done)}}});
    muster::TrainStepOptions step = options;
    step.clip_norm = clip_;
    step.unreduced = true;                  // local_ averages
    step_.emplace(net_, optimizer_, step);  // without a group: no other rank is asked
  }

  torch::Tensor step(const TextBatch& batch) override {
    const auto loss =
        (*step_)(batch, [&] { return next_token_loss(net_(batch.tokens), batch.targets); });
    if (batch.last)
      local_.step();
    return loss;
  }

  // The ranks' models meet.
  std::shared_ptr<void> whole_model() override {
    local_.average();
    return nullptr;
  }

 private:
  Gpt net_;
  double clip_;
  AdamW optimizer_;
  muster::LocalSGD local_;
  std::optional<muster::TrainStep> step_;
};
