// LBFGS keeps one state, under its first parameter. Saved, its numbers are one tensor and each
// vector of the history is another: "lbfgs.numbers", "lbfgs.d", "lbfgs.old_dirs.0". A load builds
// the whole state before it installs it, so a checkpoint that does not fit changes nothing.
#include "muster/checkpoint/lbfgs_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/indices_of.h"
#include "muster/base/json_member.h"
#include "muster/base/lists.h"
#include "muster/base/lookup.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/optimizer_kinds.h"

namespace muster::detail {

namespace {

using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;
using Vectors = std::deque<Tensor>;

constexpr auto kLbfgs = "LBFGS";
constexpr auto kNumbers = "lbfgs.numbers";  // func_evals, n_iter, t, prev_loss
constexpr size_t kMaxHistory = 1 << 20;

// LBFGS allows one group only.
auto& group_of(auto& optimizer) {
  return optimizer.param_groups().at(0);
}

const LBFGSOptions& options_of(const LBFGS& optimizer) {
  return static_cast<const LBFGSOptions&>(group_of(optimizer).options());
}

const Tensor& first_parameter(const LBFGS& optimizer) {
  return group_of(optimizer).params().at(0);
}

// Returns null before the optimizer's first step.
LBFGSParamState* state_of_lbfgs(LBFGS& optimizer) {
  const auto found = optimizer.state().find(first_parameter(optimizer).unsafeGetTensorImpl());
  if (found == optimizer.state().end())
    return nullptr;
  return static_cast<LBFGSParamState*>(found->second.get());
}

// JSON has no optional values: 0 and "" stand for options that are not set.
json lbfgs_options(const LBFGSOptions& options) {
  return {{"lr", options.lr()},
          {"max_iter", options.max_iter()},
          {"max_eval", options.max_eval().value_or(0)},
          {"tolerance_grad", options.tolerance_grad()},
          {"tolerance_change", options.tolerance_change()},
          {"history_size", options.history_size()},
          {"line_search_fn", options.line_search_fn().value_or("")}};
}

template <class T>
bool has_type(const json& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return value.is_string();
  if constexpr (std::is_same_v<T, int64_t>)
    return value.is_number_integer();
  return value.is_number();
}

// The manifest may say anything: an option of another type is refused.
template <class T>
T option_of(const json& options, const char* name) {
  const json value = member_or_null(options, name);
  if (!has_type<T>(value))
    refuse_optimizer(
        cat("an option '", name, "' of LBFGS"), value.dump(), "the manifest is damaged");
  return value.get<T>();
}

// Reads what lbfgs_options has written. Throws: invalid_argument for an option of another type.
void set_lbfgs_options(LBFGSOptions& to, const json& options) {
  to.lr(option_of<double>(options, "lr"));
  to.max_iter(option_of<int64_t>(options, "max_iter"));
  to.max_eval(option_of<int64_t>(options, "max_eval"));
  to.tolerance_grad(option_of<double>(options, "tolerance_grad"));
  to.tolerance_change(option_of<double>(options, "tolerance_change"));
  to.history_size(option_of<int64_t>(options, "history_size"));
  const auto search = option_of<std::string>(options, "line_search_fn");
  to.line_search_fn(search.empty() ? std::nullopt : std::optional(search));
}

// The history is a list of vectors; each is a tensor of its own in the file.
std::string history_name(const char* what, size_t i) {
  return cat("lbfgs.", what, ".", i);
}

// The state's tensors under their names, for saving and for loading.
struct LbfgsFields {
  std::vector<std::pair<const char*, Tensor*>> vectors;  // single ones
  std::vector<std::pair<const char*, Vectors*>> histories;
};

LbfgsFields fields_of(LBFGSParamState& state) {
  return {
      .vectors = {{"d", &state.d()},
                  {"H_diag", &state.H_diag()},
                  {"prev_flat_grad", &state.prev_flat_grad()}},
      .histories = {
          {"old_dirs", &state.old_dirs()}, {"old_stps", &state.old_stps()}, {"ro", &state.ro()}}};
}

// All other fields are as long as the parameters are together.
bool is_scalar_field(const std::string& field) {
  return field == "H_diag" || field == "ro";
}

// The one group of a saved description. Throws: invalid_argument for one of another optimizer.
json saved_group(const std::string& description) {
  const json saved = json::parse(description, nullptr, /*allow_exceptions=*/false);
  const json kind = member_or_null(saved, "kind");
  const json groups = member_or_null(saved, "groups");
  const bool has_one_group = groups.is_array() && groups.size() == 1 && groups[0].is_object();
  if (kind != kLbfgs || !has_one_group) {
    refuse_optimizer("the state of LBFGS",
                     saved.is_object() ? kind.dump() : "none",
                     "resume with the optimizer that was saved");
  }
  return groups[0];
}

// Builds a state from a checkpoint's tensors. It counts those that it uses, since a tensor that is
// left over means that the checkpoint is of something else.
class LbfgsReader {
 public:
  LbfgsReader(const LBFGS& optimizer, const TensorEntries& entries, const FetchTensor& fetch)
      : entries_(entries),
        fetch_(fetch),
        like_(first_parameter(optimizer).options().requires_grad(false)) {
    for (const Tensor& parameter : group_of(optimizer).params())
      elements_ += parameter.numel();
  }

  // Returns null if the optimizer had no state. Throws: as prepare_lbfgs.
  std::shared_ptr<LBFGSParamState> read_state() {
    auto state = std::make_shared<LBFGSParamState>();
    const Tensor numbers = take(kNumbers, {4}, at::TensorOptions(kDouble));
    if (numbers.defined())
      set_numbers(*state, numbers.const_data_ptr<double>());
    const LbfgsFields fields = fields_of(*state);
    for (const auto& [name, tensor] : fields.vectors)
      *tensor = take(cat("lbfgs.", name), shape_of(name), like_);
    for (const auto& [name, history] : fields.histories)
      for (size_t i = 0; i < kMaxHistory && entries_.contains(history_name(name, i)); ++i)
        history->push_back(take(history_name(name, i), shape_of(name), like_));
    check_whole(fields.histories);
    return numbers.defined() ? state : nullptr;
  }

 private:
  static void set_numbers(LBFGSParamState& state, const double* number) {
    state.func_evals(static_cast<int64_t>(number[0]));
    state.n_iter(static_cast<int64_t>(number[1]));
    state.t(number[2]);
    state.prev_loss(number[3]);
  }

  Int64s shape_of(const std::string& field) const {
    if (is_scalar_field(field))
      return {};
    return {elements_};
  }

  // LBFGS begins with a whole number as H_diag, and goes on with a fraction.
  static ScalarType type_of(const std::string& name,
                            const TensorEntry& entry,
                            const at::TensorOptions& like) {
    const bool is_first = name == "lbfgs.H_diag" && entry.dtype == "I64";
    return is_first ? kLong : c10::typeMetaToScalarType(like.dtype());
  }

  // Returns an undefined tensor if the checkpoint has none of that name.
  Tensor take(const std::string& name, const Int64s& shape, const at::TensorOptions& like) {
    const TensorEntry* const found = value_at(entries_, name);
    if (found == nullptr)
      return {};
    const ScalarType type = type_of(name, *found, like);
    if (!found->same_kind(tensor_entry(type, shape)))
      refuse_optimizer(cat("'", name, "' of shape [", join(shape, ", "), "]"),
                       to_string(*found),
                       "resume with the model that was saved");
    ++used_;
    TensorPiece piece = whole_piece(name, at::zeros(shape, like.dtype(type)));
    fetch_(piece);
    return piece.tensor;
  }

  void check_whole(const std::vector<std::pair<const char*, Vectors*>>& histories) const {
    const size_t length = histories[0].second->size();
    const bool is_whole = std::ranges::all_of(
        histories, [&](const auto& history) { return history.second->size() == length; });
    if (is_whole && used_ == entries_.size())
      return;
    refuse_optimizer("only a whole state of LBFGS",
                     cat(entries_.size(), " tensors, of which ", used_, " are its"),
                     "the checkpoint is damaged");
  }

  const TensorEntries& entries_;
  const FetchTensor& fetch_;
  at::TensorOptions like_;  // the type and the device of the parameters
  int64_t elements_ = 0;    // of all parameters
  size_t used_ = 0;
};

}  // namespace

OptimizerPieces lbfgs_pieces(const Strings& names, LBFGS& optimizer) {
  const json group = {{"options", lbfgs_options(options_of(optimizer))}, {"params", names}};
  OptimizerPieces result;
  result.description = json{{"kind", kLbfgs}, {"groups", json::array({group})}}.dump();
  // Before the first step there are only the options to save.
  LBFGSParamState* const state = state_of_lbfgs(optimizer);
  if (state == nullptr)
    return result;
  const auto add = [&](const std::string& name, const Tensor& tensor) {
    if (tensor.defined())
      result.pieces.push_back(whole_piece(name, tensor));
  };
  const Doubles numbers = {static_cast<double>(state->func_evals()),
                           static_cast<double>(state->n_iter()),
                           state->t(),
                           state->prev_loss()};
  add(kNumbers, at::tensor(numbers, kDouble));
  const LbfgsFields fields = fields_of(*state);
  for (const auto& [name, tensor] : fields.vectors)
    add(cat("lbfgs.", name), *tensor);
  for (const auto& [name, history] : fields.histories)
    for (const size_t i : indices_of(*history))
      add(history_name(name, i), (*history)[i]);
  return result;
}

InstallState prepare_lbfgs(const Strings& names,
                           LBFGS& optimizer,
                           const std::string& description,
                           const TensorEntries& entries,
                           const FetchTensor& fetch) {
  const json saved = saved_group(description);
  if (const json theirs = saved.value("params", json()); theirs != json(names))
    refuse_optimizer(cat("parameters ", json(names).dump()),
                     theirs.dump(),
                     "make the same group as when saving");
  auto options = options_of(optimizer);
  set_lbfgs_options(options, saved.value("options", json()));
  const std::shared_ptr<LBFGSParamState> state =
      LbfgsReader(optimizer, entries, fetch).read_state();
  return [state, options, &optimizer] {
    optimizer.state().clear();
    if (state)
      optimizer.state()[first_parameter(optimizer).unsafeGetTensorImpl()] =
          std::make_unique<LBFGSParamState>(*state);
    static_cast<LBFGSOptions&>(group_of(optimizer).options()) = options;
  };
}

}  // namespace muster::detail
