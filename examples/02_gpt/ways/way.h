// What every way of sharing the training over the ranks gives to the training loop. Each other file
// of this folder is one way.
#pragma once

#include <muster/muster.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "../gpt.h"
#include "../options.h"
#include "../text.h"

using muster::optim::AdamW;
using TextBatch = muster::Batch<Windows::Example>;

class Way {
 public:
  // The samples are dealt over the ranks of `replicas`; others see what one of these sees.
  explicit Way(muster::ProcessGroup replicas) : replicas_(std::move(replicas)) {}
  virtual ~Way() = default;
  muster::ProcessGroup& replicas() { return replicas_; }

  // Of what this rank trains.
  virtual torch::optim::Optimizer& optimizer() = 0;
  // The model and the optimizer, under the undivided model's names: what one way saves, another
  // loads.
  virtual void add_to(muster::Checkpoints& checkpoints) = 0;

  // The model is as training begins with it, or goes on after some steps. Collective: yes.
  virtual void begin(const muster::TrainStepOptions& options, int64_t steps_done) = 0;
  // One micro-batch, and the step at the last. Returns its loss. Collective: as the way is.
  virtual torch::Tensor step(const TextBatch& batch) = 0;

  // While the guard lives, every rank's device has the whole model as it was trained, in the Gpt
  // that the way was made of. Collective: yes.
  [[nodiscard]] virtual std::shared_ptr<void> whole_model() = 0;

 protected:
  muster::ProcessGroup replicas_;
};

inline torch::optim::AdamWOptions adamw(const Options& options) {
  return torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99});
}

inline std::vector<torch::optim::OptimizerParamGroup> parameter_groups(
    const std::vector<torch::Tensor>& parameters, const Options& options) {
  return muster::optim::groups_by_decay(parameters,
                                        adamw(options).weight_decay(options.weight_decay));
}

template <class Model>
Model on_device(Model model, const torch::Device& device) {
  model->to(device);
  return model;
}

// `net` with these values, on the device until the guard's end, and then in host memory again.
inline std::shared_ptr<void> whole_on_device(Gpt net,
                                             const muster::WholeParameters& values,
                                             const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->named_parameters())
    parameter.value().copy_(values.at(parameter.key()));
  net->to(device);
  return {nullptr, [net](void*) mutable { net->to(torch::kCPU); }};
}
