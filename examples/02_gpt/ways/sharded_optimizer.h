// Data parallel, with the optimizer's state divided over the ranks (ZeRO-1), and the gradients too
// (ZeRO-2).
#pragma once

#include "way.h"

class ShardedState : public Way {
 public:
  ShardedState(Gpt net, const Options& options, muster::Context& ctx)
      : Way(ctx.process_group()),
        net_(on_device(std::move(net), ctx.device())),
        clip_(options.clip),
        divides_gradients_(options.shard == "zero2"),
        optimizer_(parameter_groups(muster::distinct_parameters(*net_), options),
                   adamw(options),
                   replicas_,
                   {.gradients = divides_gradients_}) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  void add_to(muster::Checkpoints& checkpoints) override {
    checkpoints.add("model", net_).add("optimizer", optimizer_, optimizer_.pieces(*net_));
  }

  void begin(const muster::TrainStepOptions& options, int64_t /*steps_done*/) override {
    muster::TrainStepOptions step = options;
    step.group = replicas_;
    if (divides_gradients_) {
      step.clip = [this] {
        return optimizer_.clip_grad_norm(clip_);
      };
      step_.emplace(net_, optimizer_, step);
    } else {
      step.clip_norm = clip_;
      model_.emplace(net_, replicas_);
      step_.emplace(*model_, optimizer_, step);
    }
  }

  torch::Tensor step(const TextBatch& batch) override {
    return (*step_)(batch, [&] {
      return next_token_loss(model_ ? (*model_)(batch.tokens) : net_(batch.tokens), batch.targets);
    });
  }

  std::shared_ptr<void> whole_model() override { return nullptr; }  // it is

 private:
  Gpt net_;
  double clip_;
  bool divides_gradients_;
  muster::ShardedOptimizer<AdamW> optimizer_;
  std::optional<muster::DistributedDataParallel<Gpt>> model_;  // for ZeRO-1
  std::optional<muster::TrainStep> step_;
};
