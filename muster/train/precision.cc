// fp16 needs a loss scale: the loss is multiplied by it, the gradients are divided by it, and it
// shrinks when they were not finite. unscale() keeps a record of each lot of parameters until the
// scale is updated, so that nothing is divided twice. The scale stays on the device.
#include "muster/train/precision.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/optim/parts.h"
#include "muster/train/device_copy.h"
#include "muster/train/gradients.h"

namespace muster {

namespace {

// Throws: invalid_argument for another name.
ScalarType type_named(const std::string& name) {
  if (name == "fp32")
    return kFloat;
  if (name == "bf16")
    return kBFloat16;
  if (name == "fp16")
    return kHalf;
  throw invalid_argument(
      "precision: expected fp32, bf16 or fp16, got '", name, "'; pass one of these");
}

// Throws: invalid_argument for a scale that could not work.
void check_scale_options(const PrecisionOptions& options) {
  const auto expect = [](bool holds, const char* rule, const char* name, auto value) {
    if (holds)
      return;
    throw invalid_argument(
        "precision: expected ", rule, ", got ", name, " ", value, "; leave it at its default");
  };
  expect(options.init_scale > 0 && std::isfinite(options.init_scale),
         "a finite scale above 0",
         "init_scale",
         options.init_scale);
  expect(options.growth_factor > 1 && std::isfinite(options.growth_factor),
         "a growth above 1",
         "growth_factor",
         options.growth_factor);
  expect(options.backoff_factor > 0 && options.backoff_factor < 1,
         "a backoff between 0 and 1",
         "backoff_factor",
         options.backoff_factor);
  expect(
      options.growth_interval >= 1, "at least 1 step", "growth_interval", options.growth_interval);
}

// A smaller scale would only turn gradients into 0, until none is left and the scale itself is 0.
constexpr double kLeastScale = 1;

// The training cannot get better by itself from here.
[[noreturn]] void refuse_nonfinite_at_floor(double scale) {
  throw failed_precondition(
      "precision: expected finite gradients with a loss scale of ",
      scale,
      ", which is the smallest, got NaN or an infinity; look at the data and the learning "
      "rate, or use bf16 or fp32");
}

// Tries what most models are made of, forward and backward, so that a device that cannot do it says
// so before the training begins. The tensors are ones, so that no generator moves.
void try_kernels(Device device, const std::string& name) {
  const auto type = type_named(name);
  try {
    const at::AutoGradMode with_gradients(true);
    const auto options = at::TensorOptions(device).dtype(kFloat);
    const Tensor weight = at::ones({8, 8}, options).requires_grad_(true);
    const Tensor filter = at::ones({8, 8, 3, 3}, options).requires_grad_(true);
    Tensor sum;
    {
      const Autocast guard(device.type(), type, true);
      sum = at::linear(at::ones({4, 8}, options), weight).sum() +
            at::conv2d(at::ones({1, 8, 6, 6}, options), filter).sum();
    }
    torch::autograd::backward({sum}, {});
  } catch (const c10::Error& error) {
    throw unavailable(
        "precision: expected a device whose matrix products and convolutions LibTorch computes in ",
        name,
        ", got ",
        device.str(),
        " (",
        split(error.what_without_backtrace(), '\n')[0],
        "); use fp32",
        name == "fp16" ? " or bf16" : "");
  }
}

}  // namespace

Precision::Precision(Device device, const PrecisionOptions& options)
    : device_(device), options_(options), is_asked_(std::make_shared<bool>(false)) {
  const auto type = type_named(options.type);
  check_scale_options(options);
  if (type != kFloat)
    try_kernels(device, options.type);
  if (!scales())
    return;
  const auto place = at::TensorOptions(device);
  scale_ = at::full({}, options.init_scale, place.dtype(kFloat));
  growth_tracker_ = at::zeros({}, place.dtype(kInt));
}

Precision::Precision(Device device, std::string_view type)
    : Precision(device, PrecisionOptions{.type = std::string(type)}) {}

Autocast Precision::autocast() const {
  const bool enabled = options_.type != "fp32";
  // Autocast has no type fp32. While it is off, its type has no effect.
  return {device_.type(), enabled ? type_named(options_.type) : kBFloat16, enabled};
}

Tensor Precision::scale(const Tensor& loss) const {
  *is_asked_ = true;
  return scales() ? loss * copied_to(loss.device(), scale_) : loss;
}

// GradScaler, too, takes the reciprocal in double: float's is not exact with every compiler.
Tensor Precision::inverse_scale() const {
  if (!scales())
    return at::ones({}, at::TensorOptions(device_).dtype(kFloat));
  return scale_.to(kDouble).reciprocal().to(kFloat);
}

// Gradients that are divided twice would be too small, without an error.
bool Precision::is_unscaled(const Tensor& parameter) const {
  return any_of(unscaled_, [&](const Unscaled& lot) {
    return lot.parameters.contains(parameter.unsafeGetTensorImpl());
  });
}

void Precision::unscale(Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  require_scaled(parameters);
  unscale(parameters);
}

// Gradients of a loss as it is would be divided all the same, and be thousands of times too small.
// In a group of several ranks another one may have had the loss.
void Precision::require_scaled(const Tensors& parameters) const {
  const bool has_others = options_.group && options_.group->size() > 1;
  if (!scales() || *is_asked_ || has_others)
    return;
  const bool has_fresh = any_of(parameters, [this](const Tensor& parameter) {
    return parameter.grad().defined() && !is_unscaled(parameter);
  });
  if (!has_fresh)
    return;
  throw failed_precondition(
      "precision: expected gradients of a scaled loss, got a backward without "
      "precision.scale since the last update; call precision.scale(loss).backward()");
}

namespace {

// Sharded gradients, parts of divided layers, and a pipeline's stages.
bool is_seen_by_this_rank_alone(const Tensor& parameter) {
  return optim::has_divided_gradient(parameter) || optim::is_layer_part(parameter) ||
         optim::is_stage_parameter(parameter);
}

}  // namespace

// Ranks take the step together or not at all, so they agree on what was found.
void Precision::unscale(const Tensors& parameters, const std::optional<ProcessGroup>& group) {
  if (!scales())
    return;
  Tensors fresh = parameters;
  std::erase_if(fresh, [this](const Tensor& parameter) { return is_unscaled(parameter); });
  if (fresh.empty())
    return;
  std::optional<ProcessGroup> ranks = group ? group : options_.group;
  if (!ranks && any_of(fresh, is_seen_by_this_rank_alone)) {
    throw failed_precondition(
        "precision: expected the group of the ranks that share the model out, got none, so "
        "that ranks would disagree about infinities in their parts; set "
        "PrecisionOptions::group, or pass it to unscale");
  }
  const auto gradients = gradient_values(fresh);
  const bool has_half =
      any_of(gradients, [](const Tensor& gradient) { return gradient.scalar_type() == kHalf; });
  if (has_half) {
    throw invalid_argument(
        "precision: expected parameters and gradients of fp32, got a gradient of fp16; keep the "
        "model in fp32 (autocast computes in fp16), without model->to(torch::kHalf)");
  }
  Unscaled lot{.parameters = {}, .found = multiply_and_find_nonfinite(gradients, inverse_scale())};
  for (const Tensor& parameter : fresh)
    lot.parameters.insert(parameter.unsafeGetTensorImpl());
  if (ranks && ranks->size() > 1)
    ranks->all_reduce(lot.found, ReduceOp::max);
  unscaled_.push_back(std::move(lot));
}

// Lots are asked one after the other: each question waits for the device.
bool Precision::found_nonfinite(const Tensors& parameters) const {
  for (const Unscaled& lot : unscaled_) {
    const bool has_some = any_of(parameters, [&](const Tensor& parameter) {
      return lot.parameters.contains(parameter.unsafeGetTensorImpl());
    });
    if (!has_some)
      continue;
    lot.is_known_bad = lot.found.item<float>() != 0;  // waits for the device
    if (lot.is_known_bad)
      return true;
  }
  return false;
}

// An optimizer that has a parameter twice would step twice on it.
bool Precision::step(Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  require_each_once("precision", parameters, shape_as_name);
  if (scales() && !stepped_.insert(&optimizer).second) {
    throw failed_precondition(
        "precision: expected one step of an optimizer until update, got a second one, "
        "whose gradients would stay scaled; call precision.update() once after all "
        "optimizers have stepped");
  }
  require_scaled(parameters);
  unscale(parameters);
  if (scales() && found_nonfinite(parameters))
    return false;
  optimizer.step();
  at::autocast::clear_cache();  // a guard around the loop would go on with the weights of before
  return true;
}

void Precision::update() {
  const bool is_bad = any_of(unscaled_, &Unscaled::is_known_bad);
  const bool is_hopeless = is_bad && is_at_floor();
  update_scale();
  if (is_hopeless)
    refuse_nonfinite_at_floor(current_scale());
}

// LibTorch's own kernel grows or shrinks the scale, as GradScaler's does.
void Precision::update_scale() {
  if (!scales())
    return;
  if (unscaled_.empty()) {
    throw failed_precondition(
        "precision: expected unscale or step before update, got update alone; call "
        "precision.step(optimizer) first");
  }
  Tensor found = at::zeros({}, scale_.options());
  for (const Unscaled& lot : unscaled_)
    found += lot.found;
  at::_amp_update_scale_(scale_,
                         growth_tracker_,
                         found,
                         options_.growth_factor,
                         options_.backoff_factor,
                         options_.growth_interval);
  scale_.clamp_min_(floor());
  begin_update();
}

// What was scaled or stepped before belongs to another scale.
void Precision::begin_update() {
  unscaled_.clear();
  stepped_.clear();
  *is_asked_ = false;
  ++updates_;
}

// Whoever asks may scale a loss by it, as a pipeline does.
double Precision::scale_value() const {
  *is_asked_ = true;
  return current_scale();
}

double Precision::current_scale() const {
  return scales() ? scale_.item<float>() : 1;
}

float Precision::floor() const {
  return static_cast<float>(std::min(kLeastScale, options_.init_scale));
}

bool Precision::is_at_floor() const {
  return current_scale() <= floor();
}

// Only fp16 has a scale; the other types have nothing to save.
SavedState Precision::state() const {
  if (!scales())
    return {};
  return {.numbers = {{"scale", current_scale()}, {"growth_tracker", growth_tracker_.item<int>()}},
          .tensors = {}};
}

Strings Precision::needed_numbers() const {
  if (!scales())
    return {};
  return {"scale", "growth_tracker"};
}

// The floor of this program counts, also for a scale that another has saved.
void Precision::load_state(const SavedState& state) {
  if (!scales())
    return;  // a run that goes on in another type has no use for a scale
  const double scale = state.number("precision", "scale");
  const int64_t tracker = state.whole_number("precision", "growth_tracker");
  scale_.fill_(std::max<double>(scale, floor()));
  growth_tracker_.fill_(tracker);
  begin_update();
}

}  // namespace muster
