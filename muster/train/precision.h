// Mixed precision: in which type the forward computes, and, for fp16, the scale that keeps small gradients
// from becoming 0. The same object on CPU and CUDA; with "fp32" every call is there and does nothing.
//
//   muster::Precision precision(ctx.device(), "fp16");
//   auto loss = precision.run([&] { return loss_of(model(batch)); });
//   precision.scale(loss).backward();
//   precision.step(optimizer);  // unscales; leaves out a step whose gradients are not finite
//   precision.update();
//
// Weights and gradients stay fp32. Source: torch.amp.autocast and torch.amp.GradScaler, whose numbers it
// gives.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "muster/comm/process_group.h"
#include "muster/train/autocast.h"
#include "muster/train/saved_state.h"

namespace muster {

struct PrecisionOptions {
  std::string type = "fp32";  // or "bf16" or "fp16"
  // The loss is multiplied by the scale. After `growth_interval` steps of finite gradients it grows, after
  // one that was not it shrinks. For fp16 alone.
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  // The ranks that leave out a step together, or none of them: needed where they do not have the same
  // gradients, as DistributedDataParallel gives them. Then unscale and step are collective.
  std::optional<ProcessGroup> group = {};
};

class Precision {
 public:
  // Tries a product, a convolution and their backward in this type. Throws: invalid_argument for an unknown
  // type or a factor out of range; unavailable where LibTorch cannot compute in it on this device.
  Precision(c10::Device device, const PrecisionOptions& options);
  Precision(c10::Device device, std::string_view type);

  // What `function` returns, computed with autocast. Backward belongs outside.
  template <class Function>
  auto run(Function&& function) const {
    const Autocast guard = autocast();
    return std::forward<Function>(function)();
  }
  // The same as a guard. With fp32, an autocast around it is off inside.
  Autocast autocast() const;

  const std::string& type() const { return options_.type; }
  bool scales() const { return options_.type == "fp16"; }

  // loss · scale. Of a gradient penalty's inner gradients too; those are multiplied by inverse_scale() then.
  at::Tensor scale(const at::Tensor& loss) const;
  at::Tensor inverse_scale() const;

  // Divides the gradients by the scale, each once until update(); what was divided already is left alone. To
  // be called before clipping; step() does it otherwise. Blocking: only over a group. Throws:
  // invalid_argument for a gradient of type fp16; failed_precondition for sharded gradients without a group.
  void unscale(torch::optim::Optimizer& optimizer);
  // `group` is asked in place of the options'.
  void unscale(const std::vector<at::Tensor>& parameters, const std::optional<ProcessGroup>& group = {});

  // Whether one of these, or one that was unscaled with them, had a gradient that is not finite. Blocking:
  // for the GPU. False for what was not unscaled since the last update().
  bool found_nonfinite(const std::vector<at::Tensor>& parameters) const;

  // Takes the optimizer's step, unless one of its gradients is not finite; false then. Blocking: for the GPU
  // with fp16, to know that. Without a scale it is the plain step.
  bool step(torch::optim::Optimizer& optimizer);

  // Ends a step: the scale grows, stays or shrinks. Once after the steps of all optimizers. Blocking: no.
  // Throws: failed_precondition when nothing was unscaled.
  void update();

  // How often update() was called: gradients of two sides of a call have different scales.
  int64_t updates() const { return updates_; }
  // Blocking: for the GPU. 1 without a scale.
  double scale_value() const;

  SavedState state() const;
  void load_state(const SavedState& state);

 private:
  // Parameters that were unscaled together, and whether one had a gradient that is not finite.
  struct Unscaled {
    std::unordered_set<const c10::TensorImpl*> parameters;
    at::Tensor found;
  };
  bool is_unscaled(const at::Tensor& parameter) const;

  c10::Device device_;
  PrecisionOptions options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  std::vector<Unscaled> unscaled_;  // since the last update()
  int64_t updates_ = 0;
};

}  // namespace muster
