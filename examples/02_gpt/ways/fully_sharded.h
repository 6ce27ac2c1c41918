// Data parallel, with parameters, gradients and the optimizer's state divided over the ranks
// (ZeRO-3, FSDP), block by block (../sharded.h).
#pragma once

#include "../sharded.h"
#include "way.h"

class FullyShardedModel : public Way {
 public:
  FullyShardedModel(Gpt net, const Options& options, muster::Context& ctx)
      : Way(ctx.process_group()),
        net_(net),
        clip_(options.clip),
        sharded_(replicas_),
        model_(sharded_.wrap(
            ShardedGpt(net, sharded_, ctx.device()))),  // what remains beside the blocks
        optimizer_(
            sharded_.parameters(parameter_groups(muster::distinct_parameters(*net), options)),
            adamw(options)) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }

  void add_to(muster::Checkpoints& checkpoints) override {
    const auto pieces = sharded_.pieces(*net_);
    checkpoints.add("model", pieces).add("optimizer", optimizer_, pieces);
  }

  void begin(const muster::TrainStepOptions& options, int64_t /*steps_done*/) override {
    muster::TrainStepOptions step = options;
    step.group = replicas_;
    step.clip = [this] {
      return sharded_.clip_grad_norm(clip_);
    };
    step_.emplace(model_.module(), optimizer_, step);
  }

  torch::Tensor step(const TextBatch& batch) override {
    return (*step_)(batch, [&] { return next_token_loss(model_(batch.tokens), batch.targets); });
  }

  std::shared_ptr<void> whole_model() override { return sharded_.whole_parameters(); }

 private:
  Gpt net_;
  double clip_;
  muster::FullySharded sharded_;
  muster::FullyShardedModule<ShardedGpt> model_;
  AdamW optimizer_;
  std::optional<muster::TrainStep> step_;
};
