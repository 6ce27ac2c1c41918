// A whole tensor is a piece that has all elements, so that models that are sharded and models that
// are whole can be treated alike.
#include "muster/checkpoint/tensor_pieces.h"

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <map>
#include <optional>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/model_state.h"

namespace muster {

namespace {

// Lets a walk over the modules meet tensors one after the other, which should be those of a list.
class Meeting {
 public:
  explicit Meeting(const NamedTensorList& expected) : expected_(expected) {}

  // LibTorch's lists of one module, some of whose tensors may be undefined.
  template <class Named>
  void meet(const Named& named) {
    for (const auto& item : named) {
      if (!item.value().defined())
        continue;
      is_same_ =
          is_same_ && met_ < expected_.size() && expected_[met_].second.is_same(item.value());
      ++met_;
    }
  }
  bool was_complete() const { return is_same_ && met_ == expected_.size(); }

 private:
  const NamedTensorList& expected_;
  size_t met_ = 0;
  bool is_same_ = true;
};

struct SameTensors {
  bool parameters = false;
  bool buffers = false;
};

// Whether a walk over the modules meets these tensors and no others, in this order. Of parameters
// it copies no list and makes no name, so a training may ask in every step.
SameTensors compare_with_model(const Module& model,
                               const NamedTensorList& parameters,
                               const NamedTensorList& buffers) {
  struct Access : Module {
    static auto own_parameters() { return &Access::parameters_; }
  };
  Meeting of_parameters(parameters), of_buffers(buffers);
  model.apply([&](const Module& each) {
    of_parameters.meet(each.*Access::own_parameters());
    of_buffers.meet(each.named_buffers(/*recurse=*/false));
  });
  return {.parameters = of_parameters.was_complete(), .buffers = of_buffers.was_complete()};
}

// Throws where one of the tensors of before is another one now, or none.
void require_each_same(const NamedTensorList& before,
                       const torch::OrderedDict<std::string, Tensor>& now,
                       const char* owner,
                       const char* made) {
  for (const auto& [name, tensor] : before) {
    const Tensor* const found = now.find(name);
    if (found != nullptr && found->is_same(tensor))
      continue;
    throw failed_precondition(owner,
                              ": expected '",
                              name,
                              "' of the model to stay the tensor that it was, got ",
                              found == nullptr ? "none" : "another one",
                              "; replace modules and parameters before ",
                              made,
                              " made");
  }
}

// The first of these names that the tensors of before do not have.
std::optional<std::string> first_other(const Strings& names, const NamedTensorList& tensors) {
  const auto known = mapped_to<StringSet>(tensors, [](const auto& item) { return item.first; });
  for (const auto& name : names)
    if (!known.contains(name))
      return name;
  return std::nullopt;
}

}  // namespace

TensorsOfModel::TensorsOfModel(const Module& model)
    : model_(model.weak_from_this()),
      parameters_(model.named_parameters().pairs()),
      buffers_(model.named_buffers().pairs()) {}

void TensorsOfModel::require_same(const char* owner, const char* made) const {
  require_same_parameters(owner, made);
  const auto model = model_.lock();
  if (model && !compare_with_model(*model, parameters_, buffers_).buffers)
    require_each_same(buffers_, model->named_buffers(), owner, made);
}

bool TensorsOfModel::require_same_parameters(const char* owner, const char* made) const {
  const auto model = model_.lock();
  if (!model || compare_with_model(*model, parameters_, buffers_).parameters)
    return true;
  require_each_same(parameters_, model->named_parameters(), owner, made);
  return false;
}

void TensorsOfModel::require_no_others(const char* owner, const char* made) const {
  if (require_same_parameters(owner, made))
    return;
  if (const auto other = first_other(model_.lock()->named_parameters().keys(), parameters_))
    throw failed_precondition(owner,
                              ": expected a model without other parameters than it had, got '",
                              *other,
                              "' too; register it before ",
                              made,
                              " made");
}

// A buffer that the model computes anew, such as a table of a first forward, need not be saved.
void TensorsOfModel::warn_of_other_buffers(const char* owner, const char* made) const {
  const auto model = model_.lock();
  if (!model)
    return;
  if (const auto other = first_other(model->named_buffers().keys(), buffers_))
    std::call_once(told_, [&] {
      log_warning(owner,
                  ": expected a model without other buffers than it had, got '",
                  *other,
                  "' too, which is not saved; register it before ",
                  made,
                  " made, unless the model makes it anew");
    });
}

void note_model(TensorPieces& pieces, const Module& model) {
  const auto tensors = std::make_shared<const TensorsOfModel>(model);
  for (TensorPiece& piece : pieces)
    piece.model = tensors;
}

std::vector<std::shared_ptr<const TensorsOfModel>> models_of(const TensorPieces& pieces) {
  auto models = distinct(pieces, &TensorPiece::model);
  std::erase(models, nullptr);
  return models;
}

TensorPiece whole_piece(std::string name, const Tensor& tensor) {
  return {.name = std::move(name),
          .shape = tensor.sizes().vec(),
          .elements = all_elements(tensor.sizes().vec()),
          .tensor = tensor};
}

TensorPiece slice_piece(
    std::string name, Int64s shape, size_t dim, int64_t begin, const Tensor& tensor) {
  Elements elements = slice_elements(shape, dim, begin, tensor.size(static_cast<int64_t>(dim)));
  return {.name = std::move(name),
          .shape = std::move(shape),
          .elements = std::move(elements),
          .tensor = tensor};
}

TensorPiece buffer_piece(std::string name, const Tensor& tensor) {
  TensorPiece piece = whole_piece(std::move(name), tensor);
  piece.is_buffer = true;
  return piece;
}

// LibTorch lists parameters and buffers apart; only their names tell which is which.
TensorPieces whole_pieces(const Module& model) {
  TensorPieces pieces;
  for (const auto& [name, tensor] : model_tensors(model))
    pieces.push_back(whole_piece(name, tensor));
  auto buffers =
      mapped_to<StringSet>(model.named_buffers(), [&](const auto& item) { return item.key(); });
  for (TensorPiece& piece : pieces)
    piece.is_buffer = buffers.contains(piece.name);
  note_model(pieces, model);
  return pieces;
}

// Frozen parameters are the same on all ranks, so they are no rank's own.
TensorPieces own_pieces(const Module& model) {
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
      throw invalid_argument("checkpoint: expected ",
                             expected,
                             " as '",
                             piece.name,
                             "', got ",
                             got,
                             "; correct the piece");
    };
    if (!piece.tensor.defined())
      refuse("a tensor", "an undefined one");
    require_memory("checkpoint", piece.name, piece.tensor);
    const auto wrong = wrong_elements(piece.elements, element_count(piece.shape));
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
