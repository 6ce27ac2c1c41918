#include "muster/train/ema.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

namespace {

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

// One kernel where a device has one for lists of one type.
void lerp_in_lots(std::vector<at::Tensor> averages, std::vector<at::Tensor> weights, double part) {
  while (!averages.empty()) {
    const auto is_of_first_kind = [&](const at::Tensor& tensor) {
      return tensor.scalar_type() == averages[0].scalar_type() &&
             tensor.device() == averages[0].device();
    };
    std::vector<at::Tensor> lot, lot_weights, rest, rest_weights;
    for (size_t i = 0; i < averages.size(); ++i) {
      const bool now = is_of_first_kind(averages[i]);
      (now ? lot : rest).push_back(averages[i]);
      (now ? lot_weights : rest_weights).push_back(weights[i]);
    }
    at::_foreach_lerp_(lot, lot_weights, part);
    averages = std::move(rest);
    weights = std::move(rest_weights);
  }
}

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
  const bool averaged = !weight.is_buffer || (options_.buffers == EmaBuffers::average &&
                                              (tensor.is_floating_point() || tensor.is_complex()));
  (averaged ? averaged_weights_ : copied_weights_).push_back(tensor);
  (averaged ? averages_of_those_ : copies_of_those_).push_back(kept_.back());
}

// To where net->to(device) has brought them. An average of another type would be another average.
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
  return std::find_if(averages_.begin(),
                      averages_.end(),
                      [&](const auto& item) { return item.second.is_same(average); })
      ->first;
}

void Ema::update() {
  refuse_while_swapped("update");
  if (++calls_ % options_.every != 0)
    return;
  const at::NoGradGuard no_grad;
  follow_weights();
  const auto n = static_cast<double>(updates_);
  const double decay = options_.warmup ? std::min(decay_, (1 + n) / (10 + n)) : decay_;
  if (updates_ == 0) {
    copy_all(averages_of_those_, averaged_weights_);
  } else {
    lerp_in_lots(averages_of_those_, averaged_weights_, 1 - decay);
  }
  copy_all(copies_of_those_, copied_weights_);
  ++updates_;
}

void Ema::refuse_while_swapped(const char* call) const {
  if (!swapped_)
    return;
  throw Error(ErrorCode::failed_precondition,
              cat("ema: expected no ",
                  call,
                  " while the model has the averages, got one; end the scope of "
                  "swap() first"));
}

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

// Contents, not pointers: whoever holds a parameter, or has views of its memory, has the average
// too.
void Ema::exchange() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const at::Tensor before = weights_[i].clone();
    weights_[i].copy_(kept_[i]);
    kept_[i].copy_(before);
  }
}

SavedState Ema::state() const {
  refuse_while_swapped("state");
  SavedState saved{.numbers = {{"calls", static_cast<double>(calls_)},
                               {"updates", static_cast<double>(updates_)}},
                   .tensors = {}};
  for (const auto& [name, average] : averages_)
    saved.tensors[name] = average;
  return saved;
}

std::map<std::string, at::Tensor> Ema::own_tensors() const {
  return state().tensors;
}

TensorPieces Ema::pieces() const {
  TensorPieces all = pieces_;
  for (size_t i = 0; i < all.size(); ++i)
    all[i].tensor = averages_[i].second;
  return all;
}

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
