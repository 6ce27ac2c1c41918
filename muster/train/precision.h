// Mixed precision: the type in which the forward computes and, for fp16, the scale that keeps small
// gradients from becoming 0. Works the same on CPU and CUDA; with "fp32" every call is allowed and
// does nothing.
//
//   muster::Precision precision(ctx.device(), "fp16");
//   auto loss = precision.run([&] { return loss_of(model(batch)); });
//   precision.scale(loss).backward();
//   precision.step(optimizer);  // unscales; leaves out a step whose gradients are not finite
//   precision.update();
//
// Weights and gradients stay fp32. Source: torch.amp.autocast and torch.amp.GradScaler, whose
// numbers it reproduces.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/checkpoint/saved_state.h"
#include "muster/comm/process_group.h"
#include "muster/train/autocast.h"

namespace muster {

struct PrecisionOptions {
  std::string type = "fp32";  // or "bf16" or "fp16"
  // Only for fp16: the factor for the loss. It grows after `growth_interval` steps with finite
  // gradients, and shrinks after a step with a non-finite one, but not below 1 (or init_scale, if
  // that is less).
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  // The ranks that skip a step together. Needed if their gradients differ (DistributedDataParallel
  // makes them equal). It makes unscale and step collective.
  std::optional<ProcessGroup> group{};
};

class Precision {
 public:
  // Tries a matrix product, a convolution and their backward in this type.
  // Throws: invalid_argument for an unknown type or a factor out of range; unavailable if LibTorch
  // cannot compute in it on this device.
  Precision(c10::Device device, const PrecisionOptions& options);
  Precision(c10::Device device, std::string_view type);

  // Calls `function` with autocast and returns its result. Call backward outside.
  template <class Function>
  auto run(Function&& function) const {
    const Autocast guard = autocast();
    return std::forward<Function>(function)();
  }
  // Autocast as a guard. With "fp32" it disables an enclosing autocast.
  Autocast autocast() const;

  const std::string& type() const { return options_.type; }
  bool scales() const { return options_.type == "fp16"; }

  // loss · scale. Also for the inner gradients of a gradient penalty; multiply those by
  // inverse_scale() afterwards. This, or scale_value(), comes before unscale() and step().
  at::Tensor scale(const at::Tensor& loss) const;
  at::Tensor inverse_scale() const;

  // Divides each gradient by the scale, at most once until update(). Call it before clipping;
  // otherwise step() does it. Blocking: only over a group. Throws: invalid_argument for a gradient
  // of type fp16; failed_precondition for sharded gradients without a group, and without a group of
  // several ranks for gradients of a loss that nobody has scaled since the last update().
  void unscale(torch::optim::Optimizer& optimizer);
  // Uses `group` instead of that of the options. Does not look at whether a loss was scaled.
  void unscale(const Tensors& parameters, const std::optional<ProcessGroup>& group = {});

  // Whether any of these parameters, or any unscaled together with them, had a non-finite gradient.
  // False for those not unscaled since the last update(). Blocking: for the GPU.
  bool found_nonfinite(const Tensors& parameters) const;

  // Takes the optimizer's step, or returns false if a gradient is not finite. Without a scale it
  // always steps. Blocking: for the GPU, with fp16. Throws: invalid_argument for an optimizer that
  // has a parameter twice; as unscale(); failed_precondition, with fp16, for an optimizer that has
  // stepped since the last update().
  bool step(torch::optim::Optimizer& optimizer);

  // Ends a step: the scale grows, stays or shrinks. Call it once, after all optimizers have
  // stepped. Does not block while gradients are finite. Throws: failed_precondition if nothing was
  // unscaled; and if step() or found_nonfinite() has found gradients that are not finite although
  // the scale is as small as it gets, so that no later step would be better.
  void update();
  // update() for callers that decide themselves what to do then.
  void update_scale();

  // How often update() was called. Gradients from before and after a call have different scales.
  int64_t updates() const { return updates_; }
  // 1 without a scale. Blocking: for the GPU.
  double scale_value() const;
  // Whether the scale shrinks no more. Blocking: for the GPU.
  bool is_at_floor() const;

  SavedState state() const;
  void load_state(const SavedState& state);
  std::vector<std::string> needed_numbers() const;  // those that load_state() needs

 private:
  // Parameters that were unscaled together, and whether any of them had a non-finite gradient.
  struct Unscaled {
    std::unordered_set<const c10::TensorImpl*> parameters;
    at::Tensor found;
    mutable bool is_known_bad = false;  // the host has read `found`
  };
  bool is_unscaled(const at::Tensor& parameter) const;
  void require_scaled(const Tensors& parameters) const;
  void begin_update();
  double current_scale() const;
  float floor() const;

  c10::Device device_;
  PrecisionOptions options_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  // Since the last update():
  std::vector<Unscaled> unscaled_;
  std::unordered_set<const torch::optim::Optimizer*> stepped_;
  std::shared_ptr<bool>
      is_asked_;  // the scale, for a loss; copies share it as they share the scale
  int64_t updates_ = 0;
};

}  // namespace muster
