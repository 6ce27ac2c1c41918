#include "muster/checkpoint/lbfgs_state.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <deque>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/optimizer_kinds.h"

namespace muster::detail {

namespace {

using torch::optim::LBFGS;
using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;
using Vectors = std::deque<at::Tensor>;

constexpr const char* kLbfgs = "LBFGS";
constexpr const char* kNumbers = "lbfgs.numbers";  // func_evals, n_iter, t, prev_loss
constexpr size_t kMaxHistory = 1 << 20;

const at::Tensor& first_parameter(const LBFGS& optimizer) {
  return optimizer.param_groups().at(0).params().at(0);
}

LBFGSParamState* state_of_lbfgs(LBFGS& optimizer) {
  const auto found = optimizer.state().find(first_parameter(optimizer).unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr
                                          : static_cast<LBFGSParamState*>(found->second.get());
}

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
T option_of(const json& options, const char* name) {
  const json value = options.is_object() ? options.value(name, json()) : json();
  const bool fits = std::is_same_v<T, std::string> ? value.is_string()
                    : std::is_same_v<T, int64_t>   ? value.is_number_integer()
                                                   : value.is_number();
  if (!fits)
    refuse_optimizer(
        cat("an option '", name, "' of LBFGS"), value.dump(), "the manifest is damaged");
  return value.get<T>();
}

void set_lbfgs_options(LBFGSOptions& to, const json& options) {
  to.lr(option_of<double>(options, "lr"));
  to.max_iter(option_of<int64_t>(options, "max_iter"));
  to.max_eval(option_of<int64_t>(options, "max_eval"));
  to.tolerance_grad(option_of<double>(options, "tolerance_grad"));
  to.tolerance_change(option_of<double>(options, "tolerance_change"));
  to.history_size(option_of<int64_t>(options, "history_size"));
  const auto search = option_of<std::string>(options, "line_search_fn");
  to.line_search_fn(search.empty() ? std::nullopt : std::optional<std::string>(search));
}

std::string history_name(const char* what, size_t i) {
  return cat("lbfgs.", what, ".", i);
}

// The state's tensors under their names, whatever is done with them.
struct LbfgsFields {
  std::vector<std::pair<const char*, at::Tensor*>> vectors;  // single ones
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

bool is_scalar_field(const std::string& field) {
  return field == "H_diag" || field == "ro";
}

}  // namespace

OptimizerPieces lbfgs_pieces(const std::vector<std::string>& names, LBFGS& optimizer) {
  const auto& options = static_cast<const LBFGSOptions&>(optimizer.param_groups().at(0).options());
  OptimizerPieces result{
      .description = json{{"kind", kLbfgs},
                          {"groups", {{{"options", lbfgs_options(options)}, {"params", names}}}}}
                         .dump(),
      .pieces = {}};
  LBFGSParamState* const state = state_of_lbfgs(optimizer);
  if (state == nullptr)
    return result;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined())
      result.pieces.push_back(whole_piece(name, tensor));
  };
  add(kNumbers,
      at::tensor({static_cast<double>(state->func_evals()),
                  static_cast<double>(state->n_iter()),
                  state->t(),
                  state->prev_loss()},
                 at::kDouble));
  const LbfgsFields fields = fields_of(*state);
  for (const auto& [name, tensor] : fields.vectors)
    add(cat("lbfgs.", name), *tensor);
  for (const auto& [name, history] : fields.histories)
    for (size_t i = 0; i < history->size(); ++i)
      add(history_name(name, i), (*history)[i]);
  return result;
}

std::function<void()> prepare_lbfgs(const std::vector<std::string>& names,
                                    LBFGS& optimizer,
                                    const std::string& description,
                                    const TensorEntries& entries,
                                    const FetchTensor& fetch) {
  const json saved = json::parse(description, nullptr, /*allow_exceptions=*/false);
  const bool is_lbfgs = saved.is_object() && saved.value("kind", json()) == kLbfgs &&
                        saved.value("groups", json()).is_array() && saved["groups"].size() == 1 &&
                        saved["groups"][0].is_object();
  if (!is_lbfgs) {
    refuse_optimizer("the state of LBFGS",
                     saved.is_object() ? saved.value("kind", json()).dump() : "none",
                     "resume with the optimizer that was saved");
  }
  if (const json theirs = saved["groups"][0].value("params", json()); theirs != json(names))
    refuse_optimizer(cat("parameters ", json(names).dump()),
                     theirs.dump(),
                     "make the same group as when saving");
  auto options = static_cast<const LBFGSOptions&>(optimizer.param_groups().at(0).options());
  set_lbfgs_options(options, saved["groups"][0].value("options", json()));

  int64_t elements = 0;
  for (const at::Tensor& parameter : optimizer.param_groups().at(0).params())
    elements += parameter.numel();
  const at::TensorOptions kind = first_parameter(optimizer).options().requires_grad(false);
  size_t used = 0;
  const auto take =
      [&](const std::string& name, const std::vector<int64_t>& shape, const at::TensorOptions& as) {
        const auto found = entries.find(name);
        if (found == entries.end())
          return at::Tensor();
        // LBFGS begins with a whole number as H_diag, and goes on with a fraction.
        const bool is_first = name == "lbfgs.H_diag" && found->second.dtype == "I64";
        const auto type = is_first ? at::kLong : c10::typeMetaToScalarType(as.dtype());
        if (!found->second.same_kind(tensor_entry(type, shape)))
          refuse_optimizer(cat("'", name, "' of shape [", join(shape, ", "), "]"),
                           to_string(found->second),
                           "resume with the model that was saved");
        ++used;
        TensorPiece piece = whole_piece(name, at::zeros(shape, as.dtype(type)));
        fetch(piece);
        return piece.tensor;
      };
  auto state = std::make_shared<LBFGSParamState>();
  const at::Tensor numbers = take(kNumbers, {4}, at::TensorOptions(at::kDouble));
  if (numbers.defined()) {
    const double* const number = numbers.const_data_ptr<double>();
    state->func_evals(static_cast<int64_t>(number[0]));
    state->n_iter(static_cast<int64_t>(number[1]));
    state->t(number[2]);
    state->prev_loss(number[3]);
  }
  const LbfgsFields fields = fields_of(*state);
  const auto shape_of = [&](const std::string& field) {
    return is_scalar_field(field) ? std::vector<int64_t>{} : std::vector<int64_t>{elements};
  };
  for (const auto& [name, tensor] : fields.vectors)
    *tensor = take(cat("lbfgs.", name), shape_of(name), kind);
  for (const auto& [name, history] : fields.histories) {
    for (size_t i = 0; i < kMaxHistory && entries.contains(history_name(name, i)); ++i)
      history->push_back(take(history_name(name, i), shape_of(name), kind));
  }
  const bool is_whole = fields.histories[0].second->size() == fields.histories[1].second->size() &&
                        fields.histories[0].second->size() == fields.histories[2].second->size();
  if (used != entries.size() || !is_whole)
    refuse_optimizer("only a whole state of LBFGS",
                     cat(entries.size(), " tensors, of which ", used, " are its"),
                     "the checkpoint is damaged");
  const bool has_state = numbers.defined();
  return [state, has_state, options, &optimizer] {
    optimizer.state().clear();
    if (has_state)
      optimizer.state()[first_parameter(optimizer).unsafeGetTensorImpl()] =
          std::make_unique<LBFGSParamState>(*state);
    static_cast<LBFGSOptions&>(optimizer.param_groups().at(0).options()) = options;
  };
}

}  // namespace muster::detail
