// A single model's tensors have its own names in the file, as if it were saved alone. Several
// models become children of one module, whose names then begin with theirs.
#include "muster/checkpoint/training/trained_models.h"

#include <algorithm>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/training/optimizer_parameters.h"
#include "muster/checkpoint/training/swapped_weights.h"

namespace muster {

namespace {

// The lists are short: a training has a few models.
template <class Named>
bool has_name(const std::vector<Named>& all, const std::string& name) {
  return contains(all, name, &Named::first);
}

}  // namespace

// A new model changes what the joined one is.
void TrainedModels::add(const std::string& name, ModulePtr model) {
  models_.emplace_back(name, std::move(model));
  joined_.reset();
}

void TrainedModels::add(const std::string& name, TensorPieces model) {
  check_pieces(model);
  sharded_models_.emplace_back(name, std::move(model));
}

void TrainedModels::add(const std::string& name, Optimizer& optimizer, OwnMembers members) {
  require_each_once(cat("checkpoints: '", name, "'"),
                    parameters_of(optimizer),
                    [this](const Tensor& parameter) { return name_of(parameter); });
  options_of_groups(optimizer);  // throws for a kind that cannot be saved
  if (members == OwnMembers::unsaved)
    require_plain(optimizer);
  optimizers_.emplace_back(name, &optimizer);
}

void TrainedModels::shard_optimizer(TensorPieces parameters) {
  check_pieces(parameters);
  sharded_parameters_ = std::move(parameters);
}

bool TrainedModels::contains(const std::string& name) const {
  return has_name(models_, name) || has_name(sharded_models_, name) || has_optimizer(name);
}

bool TrainedModels::has_optimizer(const std::string& name) const {
  return has_name(optimizers_, name);
}

const Optimizer* TrainedModels::outer(const Optimizer* optimizer) const {
  const bool is_delegate = sharded_parameters_ && delegating_.outer != nullptr;
  return is_delegate ? delegating_.outer : optimizer;
}

Addresses TrainedModels::addresses_of_tensors() const {
  Addresses found;
  const auto note = [&](const Tensor& tensor) {
    if (tensor.defined())
      found.insert(tensor.unsafeGetTensorImpl());
  };
  for (const auto& [name, model] : models_) {
    std::ranges::for_each(model->parameters(), note);
    std::ranges::for_each(model->buffers(), note);
  }
  for (const auto& [name, pieces] : sharded_models_)
    for (const TensorPiece& piece : pieces)
      note(piece.tensor);
  return found;
}

// A message that names the parameter says where to look; its shape is the second best.
std::string TrainedModels::name_of(const Tensor& parameter) const {
  for (const auto& [name, model] : models_)
    for (const auto& item : model->named_parameters())
      if (item.value().is_same(parameter))
        return in_quotes(item.key());
  return shape_as_name(parameter);
}

const ModulePtr& TrainedModels::joined() {
  if (joined_)
    return joined_;
  if (models_.empty()) {
    throw failed_precondition("checkpoints: expected a model, got none; add(\"model\", net) first");
  }
  if (models_.size() == 1) {
    joined_ = models_.front().second;
    return joined_;
  }
  joined_ = std::make_shared<Module>("models");
  for (const auto& [name, model] : models_)
    joined_->register_module(name, model);
  return joined_;
}

namespace {

// The training would go on from the averages, with an optimizer that has seen other weights.
void refuse_swapped(const Tensor& parameter) {
  if (!is_swapped(parameter))
    return;
  throw failed_precondition(
      "checkpoints: expected the weights of the training, got averages that Ema::swap() "
      "has put in their place; save and restore outside of the swap's scope, or write the "
      "averages with save_weights");
}

constexpr auto kPiecesAre = "the pieces are";

// Pieces that were added go on to be those of before, and an older head would be saved.
void refuse_replaced(const TensorPieces& pieces) {
  for (const auto& model : models_of(pieces)) {
    model->require_same("checkpoints", kPiecesAre);
    model->require_no_others("checkpoints", kPiecesAre);
  }
}

// An optimizer may have fewer parameters than its model.
void refuse_replaced_parameters(const TensorPieces& parameters) {
  for (const auto& model : models_of(parameters))
    model->require_same_parameters("checkpoints", kPiecesAre);
}

}  // namespace

TrainingState TrainedModels::whole_state() {
  Module& model = *joined();
  for (const Tensor& parameter : model.parameters())
    refuse_swapped(parameter);
  return {.model = model,
          .optimizer = optimizers_.size() == 1 ? optimizers_.front().second : nullptr,
          .has_members = true};
}

// A whole model counts too: its optimizer may be the one that is sharded.
ShardedState TrainedModels::sharded_state() const {
  const size_t models = models_.size() + sharded_models_.size();
  if (models != 1 || optimizers_.size() > 1) {
    throw failed_precondition(
        "checkpoints: expected one model and at most one optimizer where they are divided over "
        "ranks, got ",
        models,
        " and ",
        optimizers_.size(),
        "; save the others separately");
  }
  const bool is_whole = sharded_models_.empty();
  ShardedState state{.model = is_whole ? whole_pieces(*models_.front().second)
                                       : sharded_models_.front().second};
  for (const TensorPiece& piece : state.model)
    refuse_swapped(piece.tensor);
  refuse_replaced(state.model);
  if (!optimizers_.empty())
    state.optimizer = {.optimizer = optimizers_.front().second,
                       .parameters = sharded_parameters_.value_or(state.model)};
  if (state.optimizer)
    refuse_replaced_parameters(state.optimizer->parameters);
  return state;
}

// Tensors without memory will do: what is divided over ranks is whole only while it is saved. An
// optimizer's state is looked up by the names, and left as it is.
void TrainedModels::check_savable() {
  const auto check = [](const std::string& name, const Tensor& tensor) {
    if (tensor.defined())
      require_savable(name, tensor);
  };
  for (const auto& [name, model] : models_) {
    for (const auto& items : {model->named_parameters(), model->named_buffers()})
      for (const auto& item : items)
        check(item.key(), item.value());
  }
  for (const auto& [name, pieces] : sharded_models_)
    for (const TensorPiece& piece : pieces)
      check(piece.name, piece.tensor);
  for (const auto& [name, optimizer] : optimizers_) {
    if (sharded_parameters_)
      optimizer_pieces(*sharded_parameters_, *optimizer);
    else if (!sharded_models_.empty())
      optimizer_pieces(sharded_models_.front().second, *optimizer);
    else if (!models_.empty())
      snapshot_optimizer(*joined(), *optimizer);
  }
}

// What has an owner, as a stage of a pipeline, no other rank has.
void TrainedModels::warn_of_other_buffers(bool is_first_rank) const {
  for (const auto& [name, pieces] : sharded_models_) {
    const TensorPieces told = filtered(
        pieces, [&](const TensorPiece& piece) { return is_first_rank || !piece.owner.empty(); });
    for (const auto& model : models_of(told))
      model->warn_of_other_buffers("checkpoints", kPiecesAre);
  }
}

void TrainedModels::options_to_part() const {
  if (delegating_.options_to_part)
    delegating_.options_to_part();
}

void TrainedModels::options_from_part() const {
  if (delegating_.options_from_part)
    delegating_.options_from_part();
}

}  // namespace muster
