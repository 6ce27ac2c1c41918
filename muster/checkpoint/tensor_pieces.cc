// A whole tensor is a piece that has all elements, so that models that are sharded and models that
// are whole can be treated alike.
#include "muster/checkpoint/tensor_pieces.h"

#include <torch/nn/module.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

namespace {

std::vector<std::pair<std::string, at::Tensor>> named_tensors_of(const torch::nn::Module& model) {
  auto tensors = model.named_parameters().pairs();
  append_all(tensors, model.named_buffers().pairs());
  return tensors;
}

// Whether a walk over the modules meets these tensors and no others, in this order. No name is made
// of a tensor, so a training may ask in every step.
bool meets_only(const torch::nn::Module& model,
                const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  size_t met = 0;
  bool is_same = true;
  const auto meet = [&](const auto& named) {
    for (const auto& item : named) {
      is_same = is_same && met < tensors.size() && tensors[met].second.is_same(item.value());
      ++met;
    }
  };
  model.apply([&](const torch::nn::Module& each) { meet(each.named_parameters(false)); });
  model.apply([&](const torch::nn::Module& each) { meet(each.named_buffers(false)); });
  return is_same && met == tensors.size();
}

// The first of these names that the tensors of before do not have.
std::optional<std::string> first_other(
    const std::vector<std::string>& names,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const auto known =
      mapped_to<std::set<std::string>>(tensors, [](const auto& item) { return item.first; });
  for (const std::string& name : names)
    if (!known.contains(name))
      return name;
  return std::nullopt;
}

}  // namespace

TensorsOfModel::TensorsOfModel(const torch::nn::Module& model)
    : model_(model.weak_from_this()), tensors_(named_tensors_of(model)) {}

void TensorsOfModel::require_same(const char* owner, const char* made) const {
  const auto model = model_.lock();
  if (!model || meets_only(*model, tensors_))
    return;
  const auto now = mapped_to<std::map<std::string, at::Tensor>>(
      named_tensors_of(*model), [](const auto& item) { return item; });
  for (const auto& [name, tensor] : tensors_) {
    const auto found = now.find(name);
    if (found != now.end() && found->second.is_same(tensor))
      continue;
    throw Error(ErrorCode::failed_precondition,
                cat(owner,
                    ": expected '",
                    name,
                    "' of the model to stay the tensor that it was, got ",
                    found == now.end() ? "none" : "another one",
                    "; replace modules and parameters before ",
                    made,
                    " made"));
  }
}

void TensorsOfModel::require_no_others(const char* owner, const char* made) const {
  require_same(owner, made);
  const auto model = model_.lock();
  if (!model || meets_only(*model, tensors_))
    return;
  if (const auto other = first_other(model->named_parameters().keys(), tensors_))
    throw Error(ErrorCode::failed_precondition,
                cat(owner,
                    ": expected a model without other parameters than it had, got '",
                    *other,
                    "' too; register it before ",
                    made,
                    " made"));
}

// A buffer that the model computes anew, such as a table of a first forward, need not be saved.
void TensorsOfModel::warn_of_other_buffers(const char* owner, const char* made) const {
  const auto model = model_.lock();
  if (!model || meets_only(*model, tensors_))
    return;
  if (const auto other = first_other(model->named_buffers().keys(), tensors_))
    std::call_once(told_, [&] {
      log(LogLevel::warn,
          cat(owner,
              ": expected a model without other buffers than it had, got '",
              *other,
              "' too, which is not saved; register it before ",
              made,
              " made, unless the model makes it anew"));
    });
}

void note_model(TensorPieces& pieces, const torch::nn::Module& model) {
  const auto tensors = std::make_shared<const TensorsOfModel>(model);
  for (TensorPiece& piece : pieces)
    piece.model = tensors;
}

std::vector<std::shared_ptr<const TensorsOfModel>> models_of(const TensorPieces& pieces) {
  auto models = distinct(pieces, &TensorPiece::model);
  std::erase(models, nullptr);
  return models;
}

TensorPiece whole_piece(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name),
          .shape = tensor.sizes().vec(),
          .elements = all_elements(tensor.sizes().vec()),
          .tensor = tensor};
}

TensorPiece slice_piece(std::string name,
                        std::vector<int64_t> shape,
                        size_t dim,
                        int64_t begin,
                        const at::Tensor& tensor) {
  Elements elements = slice_elements(shape, dim, begin, tensor.size(static_cast<int64_t>(dim)));
  return {.name = std::move(name),
          .shape = std::move(shape),
          .elements = std::move(elements),
          .tensor = tensor};
}

TensorPiece buffer_piece(std::string name, const at::Tensor& tensor) {
  TensorPiece piece = whole_piece(std::move(name), tensor);
  piece.is_buffer = true;
  return piece;
}

// LibTorch lists parameters and buffers apart; only their names tell which is which.
TensorPieces whole_pieces(const torch::nn::Module& model) {
  TensorPieces pieces;
  for (const auto& [name, tensor] : model_tensors(model))
    pieces.push_back(whole_piece(name, tensor));
  auto buffers = mapped_to<std::set<std::string>>(model.named_buffers(),
                                                  [&](const auto& item) { return item.key(); });
  for (TensorPiece& piece : pieces)
    piece.is_buffer = buffers.contains(piece.name);
  note_model(pieces, model);
  return pieces;
}

// Frozen parameters are the same on all ranks, so they are no rank's own.
TensorPieces own_pieces(const torch::nn::Module& model) {
  TensorPieces pieces = whole_pieces(model);
  for (TensorPiece& piece : pieces)
    piece.is_own = piece.is_buffer || piece.tensor.requires_grad();
  return pieces;
}

// Pieces come from whoever shards a model, which may be a program's own code.
void check_pieces(const TensorPieces& pieces) {
  std::map<std::string, const Elements*> known;
  for (const TensorPiece& piece : pieces) {
    const auto refuse = [&](const std::string& expected, const std::string& got) {
      throw Error(ErrorCode::invalid_argument,
                  cat("checkpoint: expected ",
                      expected,
                      " as '",
                      piece.name,
                      "', got ",
                      got,
                      "; correct the piece"));
    };
    if (!piece.tensor.defined())
      refuse("a tensor", "an undefined one");
    require_memory("checkpoint", piece.name, piece.tensor);
    const std::string wrong = wrong_elements(piece.elements, element_count(piece.shape));
    if (!wrong.empty())
      refuse(cat("elements of [", join(piece.shape, ", "), "]"), wrong);
    if (piece.tensor.numel() != element_count(piece.elements))
      refuse(cat(element_count(piece.elements), " elements"), cat(piece.tensor.numel()));
    const auto [other, is_new] = known.try_emplace(piece.name, &piece.elements);
    if (!is_new && *other->second != piece.elements)
      refuse("one piece on a rank", "two");
  }
}

}  // namespace muster
