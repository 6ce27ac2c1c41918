// Every weight has one average, however many names it has. Averages are updated in lots of one type
// and device. During a swap the model's memory holds the averages, and this object the weights.
#include "muster/train/ema.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

namespace {

// Throws: invalid_argument.
void check_ema_options(double decay, const EmaOptions& options) {
  if (!(decay >= 0 && decay <= 1)) {
    throw Error(
        ErrorCode::invalid_argument,
        cat("ema: expected a decay between 0 and 1, got ", decay, "; 0.999 is a common choice"));
  }
  if (options.every < 1) {
    throw Error(ErrorCode::invalid_argument,
                cat("ema: expected every to be at least 1, got ",
                    options.every,
                    "; 1 averages every step"));
  }
}

// Tells that a weight is no longer what was averaged.
[[noreturn]] void refuse_other_weight(const std::string& name,
                                      const at::Tensor& average,
                                      const at::Tensor& weight) {
  const auto kind_of = [](const at::Tensor& tensor) {
    return cat(c10::toString(tensor.scalar_type()), " [", join(tensor.sizes(), ", "), "]");
  };
  throw Error(ErrorCode::failed_precondition,
              cat("ema: expected '",
                  name,
                  "' as it was averaged, ",
                  kind_of(average),
                  ", got ",
                  kind_of(weight),
                  "; make the Ema after the model has its type, or load its state into a new one"));
}

// Averages and their weights, of one type and on one device.
struct AverageLot {
  std::vector<at::Tensor> averages, weights;
};

// Moves the averages towards the weights. A device may have one kernel for a list of one type.
void lerp_in_lots(const std::vector<at::Tensor>& averages,
                  const std::vector<at::Tensor>& weights,
                  double part) {
  using Kind = std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>;
  std::map<Kind, AverageLot> lots;
  for (size_t i = 0; i < averages.size(); ++i) {
    const at::Tensor& average = averages[i];
    const c10::Device device = average.device();
    AverageLot& lot = lots[{device.type(), device.index(), average.scalar_type()}];
    lot.averages.push_back(average);
    lot.weights.push_back(weights[i]);
  }
  for (const auto& [kind, lot] : lots)
    at::_foreach_lerp_(lot.averages, lot.weights, part);
}

// Returns a model's parameters and buffers, each as a whole piece.
TensorPieces weights_of(const torch::nn::Module& model) {
  TensorPieces weights;
  for (const auto& item : model.named_parameters())
    if (item.value().defined())
      weights.push_back(whole_piece(item.key(), item.value()));
  for (const auto& item : model.named_buffers())
    if (item.value().defined())
      weights.push_back(buffer_piece(item.key(), item.value()));
  return weights;
}

// LibTorch refuses empty lists.
void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  if (!to.empty())
    at::_foreach_copy_(to, from);
}

}  // namespace

Ema::Ema(torch::nn::Module& model, double decay, const EmaOptions& options)
    : Ema(weights_of(model), decay, options) {}

Ema::Ema(const TensorPieces& weights, double decay, const EmaOptions& options)
    : decay_(decay), options_(options) {
  check_ema_options(decay, options);
  for (const TensorPiece& weight : weights)
    add(weight);
}

// A weight that two layers share has two names and one average.
void Ema::add(const TensorPiece& weight) {
  const at::Tensor& tensor = weight.tensor;
  pieces_.push_back(weight);
  pieces_.back().tensor.reset();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].is_same(tensor))
      continue;
    averages_.emplace_back(weight.name, kept_[i]);
    return;
  }
  require_memory("ema", weight.name, tensor);
  weights_.push_back(tensor);
  kept_.push_back(tensor.detach().clone());
  averages_.emplace_back(weight.name, kept_.back());
  const bool has_fractions = tensor.is_floating_point() || tensor.is_complex();
  const bool averages_buffer = options_.buffers == EmaBuffers::average && has_fractions;
  if (!weight.is_buffer || averages_buffer) {
    averaged_weights_.push_back(tensor);
    averages_of_those_.push_back(kept_.back());
  } else {
    copied_weights_.push_back(tensor);
    copies_of_those_.push_back(kept_.back());
  }
}

// Brings the averages to where net->to(device) has brought the weights. An average of another type
// would be another average, so a weight that has changed its type is refused.
void Ema::follow_weights() {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor &weight = weights_[i], &kept = kept_[i];
    require_memory("ema", name_of(kept), weight);
    if (weight.scalar_type() != kept.scalar_type() || weight.sizes() != kept.sizes())
      refuse_other_weight(name_of(kept), kept, weight);
    if (weight.device() != kept.device())
      kept.set_data(kept.to(weight.device()));
  }
}

const std::string& Ema::name_of(const at::Tensor& average) const {
  const auto is_it = [&](const auto& item) {
    return item.second.is_same(average);
  };
  return std::ranges::find_if(averages_, is_it)->first;
}

// The first update copies the weights: an average of nothing would begin at 0.
void Ema::update() {
  refuse_while_swapped("update");
  if (++calls_ % options_.every != 0)
    return;
  const at::NoGradGuard no_grad;
  follow_weights();
  const double n = as_number(updates_);
  const double decay = options_.warmup ? std::min(decay_, (1 + n) / (10 + n)) : decay_;
  if (updates_ == 0) {
    copy_all(averages_of_those_, averaged_weights_);
  } else {
    lerp_in_lots(averages_of_those_, averaged_weights_, 1 - decay);
  }
  copy_all(copies_of_those_, copied_weights_);
  ++updates_;
}

// Averages and weights are exchanged during a swap, so no call would do what its name says.
void Ema::refuse_while_swapped(const char* call) const {
  if (!swapped_)
    return;
  throw Error(ErrorCode::failed_precondition,
              cat("ema: expected no ",
                  call,
                  " while the model has the averages, got one; end the scope of "
                  "swap() first"));
}

// The model must have memory to hold the averages, which FullySharded may have freed.
void Ema::begin_swap() {
  refuse_while_swapped("second swap");
  for (size_t i = 0; i < weights_.size(); ++i)
    require_memory("ema", name_of(kept_[i]), weights_[i]);
  exchange();
  swapped_ = true;
}

void Ema::end_swap() {
  exchange();
  swapped_ = false;
}

// Contents are exchanged, and not pointers: whoever holds a parameter, or has views of its memory,
// has the average too.
void Ema::exchange() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor before = weights_[i].clone();
    weights_[i].copy_(kept_[i]);
    kept_[i].copy_(before);
  }
}

// The state shares the averages' memory, so making it costs nothing.
SavedState Ema::state() const {
  refuse_while_swapped("state");
  SavedState saved;
  saved.numbers = {{"calls", as_number(calls_)}, {"updates", as_number(updates_)}};
  for (const auto& [name, average] : averages_)
    saved.tensors[name] = average;
  return saved;
}

std::map<std::string, at::Tensor> Ema::own_tensors() const {
  return state().tensors;
}

// The averages have the places of the weights in the whole model.
TensorPieces Ema::pieces() const {
  TensorPieces all = pieces_;
  for (size_t i = 0; i < all.size(); ++i)
    all[i].tensor = averages_[i].second;
  return all;
}

// Shapes are compared before anything is changed.
void Ema::load_state(const SavedState& state) {
  refuse_while_swapped("load_state");
  const int64_t calls = state.whole_number("ema", "calls");
  const int64_t updates = state.whole_number("ema", "updates");
  for (const auto& [name, average] : averages_) {
    const at::Tensor& saved = state.tensor("ema", name);
    if (saved.sizes() == average.sizes())
      continue;
    throw Error(ErrorCode::invalid_argument,
                cat("ema: expected '",
                    name,
                    "' of shape [",
                    join(average.sizes(), ", "),
                    "], got [",
                    join(saved.sizes(), ", "),
                    "]; load the state of the same model"));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, average] : averages_)
    average.copy_(state.tensor("ema", name));
  calls_ = calls;
  updates_ = updates;
}

}  // namespace muster
