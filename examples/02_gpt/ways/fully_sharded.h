// Data parallel, with parameters, gradients and the optimizer's state divided over the ranks (ZeRO-3, FSDP),
// block by block (../sharded.h).
#pragma once

#include "../sharded.h"
#include "way.h"

class FullyShardedModel : public Way {
 public:
  FullyShardedModel(Gpt net, const Options& options, muster::Context& ctx)
      : Way(ctx.process_group()),
        clip_(options.clip),
        sharded_(replicas_),
        model_(sharded_.wrap(ShardedGpt(net, sharded_, ctx.device()))),  // what remains beside the blocks
        optimizer_(sharded_.parameters(parameter_groups(net->parameters(), options)), adamw(options)),
        whole_(parameter_groups(net->parameters(), options), adamw(options)) {}

  torch::optim::Optimizer& optimizer() override { return optimizer_; }
  torch::optim::Optimizer* whole_optimizer() override { return &whole_; }

  void begin(const muster::TrainStepOptions& options) override {
    muster::TrainStepOptions step = options;
    step.group = replicas_;
    step.clip = [this] { return sharded_.clip_grad_norm(clip_); };
    step_.emplace(model_.module(), optimizer_, step);
  }

  torch::Tensor step(const TextBatch& batch) override {
    return (*step_)(batch, [&] { return next_token_loss(model_(batch.tokens), batch.targets); });
  }

  // Model and state are brought together, and divided again.
  std::shared_ptr<void> whole_model() override {
    sharded_.gather_state(optimizer_, whole_);
    return {nullptr, [this, parameters = sharded_.whole_parameters()](void*) mutable {
              parameters.reset();
              sharded_.divide_state(optimizer_, whole_);
              whole_.state().clear();
            }};
  }

 private:
  double clip_;
  muster::FullySharded sharded_;
  muster::FullyShardedModule<ShardedGpt> model_;
  AdamW optimizer_;
  AdamW whole_;
  std::optional<muster::TrainStep> step_;
};
