// What steps of a training cost: time, and waits of the host for the GPU.
#pragma once

#include <muster/muster.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>

namespace gpu_probe {

// How often the host has waited for the GPU, where count_waits.cc is loaded beforehand.
int64_t host_waits();

struct StepCosts {
  double waits;
  double milliseconds;
};

// What a step of 50 costs.
StepCosts costs_of_steps(muster::Context& ctx, const std::function<void()>& step);

// A deep model, whose optimizer has many parameters.
torch::nn::Sequential layers(int64_t width);

// What a step costs by TrainStep, with all that it does.
template <class Optimizer, class Options>
StepCosts costs_by_train_step(muster::Context& ctx, const at::Tensor& x, const Options& options) {
  auto net = layers(x.size(1));
  net->to(ctx.device());
  muster::DistributedDataParallel model(net, ctx.process_group());
  Optimizer optimizer(model.parameters(), options);
  muster::TrainStep step(model, optimizer, {.clip_norm = 1.0});
  return costs_of_steps(ctx, [&] { step.run(1, true, [&] { return model(x).square().mean(); }); });
}

}  // namespace gpu_probe
