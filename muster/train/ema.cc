// Every weight has one average, however many names it has. Averages are updated in lots of one type
// and device. During a swap the model's memory holds the averages, and this object the weights.
#include "muster/train/ema.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/training/resumed_objects.h"
#include "muster/checkpoint/training/swapped_weights.h"

namespace muster {

namespace {

// Throws: invalid_argument.
void check_ema_options(double decay, const EmaOptions& options) {
  if (!(decay >= 0 && decay <= 1)) {
    throw invalid_argument(
        "ema: expected a decay between 0 and 1, got ", decay, "; 0.999 is a common choice");
  }
  if (options.every < 1) {
    throw invalid_argument(
        "ema: expected every to be at least 1, got ", options.every, "; 1 averages every step");
  }
}

// Tells that a weight is no longer what was averaged.
[[noreturn]] void refuse_other_weight(const std::string& name,
                                      ScalarType averaged_type,
                                      const Tensor& average,
                                      const Tensor& weight) {
  const auto kind_of = [](ScalarType type, const Tensor& tensor) {
    return cat(toString(type), " [", sizes_text(tensor), "]");
  };
  throw failed_precondition(
      "ema: expected '",
      name,
      "' as it was averaged, ",
      kind_of(averaged_type, average),
      ", got ",
      kind_of(weight.scalar_type(), weight),
      "; make the Ema after the model has its type, or load its state into a new one");
}

// A step of 1 - decay is less than half a bit of such types, and would be lost.
ScalarType average_type(const Tensor& weight) {
  const ScalarType type = weight.scalar_type();
  return at::isReducedFloatingType(type) ? kFloat : type;
}

// Averages and their weights, of one type and on one device.
struct AverageLot {
  Tensors averages, weights;
};

// Moves the averages towards the weights. A device may have one kernel for a list of one type.
void lerp_in_lots(const Tensors& averages, const Tensors& weights, double part) {
  using Kind = std::tuple<c10::DeviceType, c10::DeviceIndex, ScalarType>;
  std::map<Kind, AverageLot> lots;
  for (const size_t i : indices_of(averages)) {
    const Tensor& average = averages[i];
    const Device device = average.device();
    AverageLot& lot = lots[{device.type(), device.index(), average.scalar_type()}];
    lot.averages.push_back(average);
    lot.weights.push_back(weights[i].to(average.scalar_type()));  // the same one, if it has it
  }
  for (const auto& [kind, lot] : lots)
    at::_foreach_lerp_(lot.averages, lot.weights, part);
}

// Returns a model's parameters and buffers, each as a whole piece.
TensorPieces weights_of(const Module& model) {
  TensorPieces weights;
  for (const auto& item : model.named_parameters())
    if (item.value().defined())
      weights.push_back(whole_piece(item.key(), item.value()));
  for (const auto& item : model.named_buffers())
    if (item.value().defined())
      weights.push_back(buffer_piece(item.key(), item.value()));
  note_model(weights, model);
  return weights;
}

// LibTorch refuses empty lists.
void copy_all(const Tensors& to, const Tensors& from) {
  if (!to.empty())
    at::_foreach_copy_(to, from);
}

void follow_device(const Tensor& average, const Tensor& weight) {
  if (weight.device() != average.device())
    average.set_data(average.to(weight.device()));
}

// Weights that may share memory, because they lie in one storage.
std::vector<Indices> by_storage(const Tensors& weights) {
  std::unordered_map<const c10::StorageImpl*, size_t> places;
  std::vector<Indices> groups;
  for (const size_t i : indices_of(weights)) {
    const auto* const storage = weights[i].storage().unsafeGetStorageImpl();
    const auto [place, is_new] = places.emplace(storage, groups.size());
    if (is_new)
      groups.emplace_back();
    groups[place->second].push_back(i);
  }
  return groups;
}

// What somebody has changed in the model during a swap is the average from then on. What is as it
// was put there keeps the bits that the model's type does not have.
void keep_changes(const Tensor& average, const Tensor& now) {
  const Tensor unchanged = now.eq(average.to(now.scalar_type()));
  average.copy_(at::where(unchanged, average, now.to(average.scalar_type())));
}

}  // namespace

Ema::Ema(Module& model, double decay, const EmaOptions& options)
    : Ema(weights_of(model), decay, options) {}

Ema::Ema(const TensorPieces& weights, double decay, const EmaOptions& options)
    : decay_(decay), options_(options) {
  check_ema_options(decay, options);
  for (const TensorPiece& weight : weights)
    add(weight);
  models_ = models_of(pieces_);
}

// A weight that two layers share has two names and one average.
void Ema::add(const TensorPiece& weight) {
  const Tensor& tensor = weight.tensor;
  pieces_.push_back(weight);
  pieces_.back().tensor.reset();
  for (const size_t i : indices_of(weights_)) {
    if (!weights_[i].is_same(tensor))
      continue;
    averages_.emplace_back(weight.name, kept_[i]);
    return;
  }
  require_memory("ema", weight.name, tensor);
  weights_.push_back(tensor);
  names_.push_back(weight.name);
  types_.push_back(tensor.scalar_type());
  kept_.push_back(tensor.detach().to(average_type(tensor), /*non_blocking=*/false, /*copy=*/true));
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
  for (const size_t i : indices_of(weights_)) {
    const Tensor &weight = weights_[i], &kept = kept_[i];
    require_memory("ema", names_[i], weight);
    if (weight.scalar_type() != types_[i] || weight.sizes() != kept.sizes())
      refuse_other_weight(names_[i], types_[i], kept, weight);
    follow_device(kept, weight);
  }
}

void Ema::warn_if_left_out() const {
  const auto weights = mapped_to<std::set<const void*>>(weights_, &Tensor::unsafeGetTensorImpl);
  ResumedObjects::of_process().warn_if_left_out("ema", "its model", this, weights);
}

// The first update copies the weights: an average of nothing would begin at 0.
void Ema::update() {
  refuse_while_swapped("update");
  if (calls_ == 0)
    warn_if_left_out();
  if (++calls_ % options_.every != 0)
    return;
  const NoGradGuard no_grad;
  require_averaged_modules();
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
  throw failed_precondition(
      "ema: expected no ",
      call,
      " while the model has the averages, got one; end the scope of swap() first");
}

// A module that was replaced has weights that are not averaged: the model would be half of
// averages.
void Ema::require_averaged_modules() const {
  for (const auto& model : models_)
    model->require_same("ema", "the Ema and its pieces are");
}

// The model must have memory to hold the averages, which FullySharded may have freed. Weights may
// have been loaded before the first update, so the averages are those.
void Ema::begin_swap() {
  refuse_while_swapped("second swap");
  require_averaged_modules();
  for (const size_t i : indices_of(weights_)) {
    require_memory("ema", names_[i], weights_[i]);
    if (weights_[i].sizes() != kept_[i].sizes())
      refuse_other_weight(names_[i], types_[i], kept_[i], weights_[i]);
    follow_device(kept_[i], weights_[i]);
  }
  if (updates_ == 0) {
    const NoGradGuard no_grad;
    copy_all(kept_, weights_);
  }
  exchange();
  note_swapped(this, weights_);
  swapped_ = true;
}

void Ema::end_swap() {
  forget_swapped(this);
  exchange();
  swapped_ = false;
}

// Contents are exchanged, and not pointers: whoever holds a parameter, or has views of its memory,
// has the average too. Weights in one memory are all read before any is written.
void Ema::exchange() {
  const NoGradGuard no_grad;
  aside_.resize(weights_.size());
  for (const Indices& together : by_storage(weights_)) {
    Tensors before = mapped(together, [&](const size_t i) { return weights_[i].clone(); });
    for (const size_t j : indices_of(together))
      exchange_one(together[j], before[j]);
  }
  at::autocast::clear_cache();  // a guard around the swap would go on with the other weights
}

// An average of more bits than the weight stays here, since the weight would round it.
void Ema::exchange_one(size_t i, const Tensor& before) {
  if (aside_[i].defined()) {
    weights_[i].copy_(aside_[i]);
    keep_changes(kept_[i], before);
    aside_[i].reset();
    return;
  }
  weights_[i].copy_(kept_[i]);
  if (swapped_ || before.scalar_type() == kept_[i].scalar_type()) {
    kept_[i].copy_(before);
  } else {
    aside_[i] = before;
  }
}

// The state shares the averages' memory, so making it costs nothing.
SavedState Ema::state() const {
  refuse_while_swapped("state");
  require_averaged_modules();
  SavedState saved;
  saved.numbers = {{"calls", as_number(calls_)}, {"updates", as_number(updates_)}};
  for (const auto& [name, average] : averages_)
    saved.tensors[name] = average;
  return saved;
}

NamedTensors Ema::own_tensors() const {
  return state().tensors;
}

// The averages have the places of the weights in the whole model.
TensorPieces Ema::pieces() const {
  require_averaged_modules();
  TensorPieces all = pieces_;
  for (const size_t i : indices_of(all))
    all[i].tensor = averages_[i].second;
  return all;
}

// Shapes are compared before anything is changed.
void Ema::load_state(const SavedState& state) {
  refuse_while_swapped("load_state");
  const int64_t calls = state.whole_number("ema", "calls");
  const int64_t updates = state.whole_number("ema", "updates");
  for (const auto& [name, average] : averages_) {
    const Tensor& saved = state.tensor("ema", name);
    if (saved.sizes() == average.sizes())
      continue;
    throw invalid_argument("ema: expected '",
                           name,
                           "' of shape [",
                           sizes_text(average),
                           "], got [",
                           sizes_text(saved),
                           "]; load the state of the same model");
  }
  const NoGradGuard no_grad;
  for (const auto& [name, average] : averages_)
    average.copy_(state.tensor("ema", name));
  calls_ = calls;
  updates_ = updates;
}

}  // namespace muster
