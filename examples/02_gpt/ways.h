// How the ranks share the training: what reduces gradients, whose optimizer's state is where, and when the
// ranks' models meet.
#pragma once

#include <muster/muster.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "gpt.h"
#include "options.h"

// Matrices decay; biases and the norms' scales do not.
inline std::vector<torch::optim::OptimizerParamGroup> parameter_groups(Gpt& net, const Options& options) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> others;
  for (const auto& parameter : net->parameters())
    (parameter.dim() < 2 ? others : matrices).push_back(parameter);
  const auto adamw = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(adamw));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(adamw));
  static_cast<torch::optim::AdamWOptions&>(groups[0].options()).weight_decay(options.weight_decay);
  static_cast<torch::optim::AdamWOptions&>(groups[1].options()).weight_decay(0);
  return groups;
}

using ShardedAdamW = muster::ShardedOptimizer<torch::optim::AdamW>;

// ZeRO-2, whose ranks must clip by the norm of all their parts, right before the step.
class ClippedShardedAdamW : public ShardedAdamW {
 public:
  ClippedShardedAdamW(Groups groups, const torch::optim::AdamWOptions& adamw, muster::ProcessGroup group,
                      double clip)
      : ShardedAdamW(std::move(groups), adamw, std::move(group), {.gradients = true}), clip_(clip) {}
  torch::Tensor step(LossClosure closure = nullptr) override {
    clip_grad_norm(clip_);
    return ShardedAdamW::step(std::move(closure));
  }

 private:
  double clip_;
};

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(Gpt& net, const Options& options,
                                                               muster::Context& ctx) {
  auto groups = parameter_groups(net, options);
  const auto adamw = torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99});
  if (options.shard == "zero1")
    return std::make_unique<ShardedAdamW>(std::move(groups), adamw, ctx.process_group());
  if (options.shard == "zero2")
    return std::make_unique<ClippedShardedAdamW>(std::move(groups), adamw, ctx.process_group(), options.clip);
  return std::make_unique<torch::optim::AdamW>(std::move(groups), adamw);
}

// One way: data parallel, with --shard, or with --local-sgd.
class Way {
 public:
  Way(Gpt net, const Options& options, muster::Context& ctx)
      : net_(std::move(net)), options_(options), ctx_(ctx), optimizer_(make_optimizer(net_, options, ctx)) {}

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // The model is as training begins with it. Collective: yes.
  void begin(muster::TrainStepOptions step) {
    step.group = ctx_.process_group();
    if (options_.shard != "zero2") step.clip_norm = options_.clip;
    if (options_.local_sgd > 0) {
      step.group.reset();  // each rank takes steps of its own
      local_.emplace(net_->parameters(), ctx_.process_group(),
                     muster::LocalSGDOptions{.every = options_.local_sgd});
    } else if (options_.shard != "zero2") {
      model_.emplace(net_, ctx_.process_group());
      step_ = std::make_unique<muster::TrainStep>(*model_, *optimizer_, step);
      return;
    }
    step_ = std::make_unique<muster::TrainStep>(net_, *optimizer_, step);
  }

  // One micro-batch, and the step at the last. Returns its loss. Collective: as the way is.
  template <class Batch>
  torch::Tensor step(const Batch& batch) {
    const auto loss = (*step_)(batch, [&] {
      return next_token_loss(model_ ? (*model_)(batch.tokens) : net_(batch.tokens), batch.targets);
    });
    if (local_ && batch.last) local_->step();
    return loss;
  }

  // Every rank has the same model afterwards. Collective: yes.
  void meet() {
    if (local_) local_->average();
  }

 private:
  Gpt net_;
  const Options& options_;
  muster::Context& ctx_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<muster::DistributedDataParallel<Gpt>> model_;
  std::optional<muster::LocalSGD> local_;
  std::unique_ptr<muster::TrainStep> step_;
};
