// LibTorch keeps an optimizer's state by the address of each parameter. Here it has the parameter's
// name, and optimizer_kinds.h says which fields each kind of optimizer has. The pieces of a sharded
// model are the general case: an optimizer of a whole model is one whose pieces are whole.
#include "muster/checkpoint/optimizer_state.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_member.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/lbfgs_state.h"
#include "muster/checkpoint/optimizer_kinds.h"
#include "muster/optim/plain_class.h"

namespace muster {

namespace {

using detail::refuse_optimizer;
using detail::with_kind;
using nlohmann::json;

using PiecesOfGroup = std::vector<const TensorPiece*>;

// In a rank's description of a group: the parameters of which each rank has its own.
constexpr auto kOwnParams = "own";

// Returns the optimizer's parameters, group by group, with their names.
std::vector<PiecesOfGroup> pieces_of_groups(const TensorPieces& parameters, Optimizer& optimizer) {
  std::unordered_map<void*, const TensorPiece*> known;
  for (const TensorPiece& piece : parameters)
    known.emplace(piece.tensor.unsafeGetTensorImpl(), &piece);
  std::vector<PiecesOfGroup> groups;
  for (const auto& group : optimizer.param_groups()) {
    PiecesOfGroup& pieces = groups.emplace_back();
    for (const Tensor& tensor : group.params()) {
      const auto found = known.find(tensor.unsafeGetTensorImpl());
      if (found == known.end()) {
        refuse_optimizer("only parameters of the model",
                         cat("one of shape [",
                             join(tensor.sizes(), ", "),
                             "] in group ",
                             groups.size() - 1,
                             " that the model does not name"),
                         "pass the model whose parameters the optimizer was made with");
      }
      pieces.push_back(found->second);
    }
  }
  return groups;
}

template <class Kind>
typename Kind::Options& options_of_group(Optimizer& optimizer, size_t group) {
  return static_cast<typename Kind::Options&>(optimizer.param_groups()[group].options());
}

// Checks that a saved group has these parameters. What shards a model may name them in another
// order.
void check_names(const json& saved, Strings mine, size_t group, bool in_order) {
  json theirs = member_or_null(saved, "params");
  if (!theirs.is_array())
    theirs = json::array();
  if (!in_order) {
    std::ranges::sort(mine);
    std::sort(theirs.begin(), theirs.end());
  }
  const json own = mine;
  const auto name_at = [](const json& names, size_t i) {
    return i < names.size() ? names[i] : json("no more");
  };
  for (const size_t i : indices_below(std::max(own.size(), theirs.size()))) {
    const json here = name_at(own, i), there = name_at(theirs, i);
    if (here == there)
      continue;
    refuse_optimizer(cat("parameter ", here.dump(), " at place ", i, " of group ", group),
                     there.dump(),
                     "make the same groups as when saving");
  }
}

// A field of a parameter's state, as a file has it.
struct StateField {
  std::string name;
  TensorEntry kind;
  bool is_tensor;  // sharded as the parameter is; a number is not
};

// Numbers, such as Adam's step, are saved as 64-bit scalars whatever the parameter's type is.
template <class Value>
StateField field_of(const TensorPiece& parameter, const char* field, const Value&) {
  constexpr bool kIsTensor = std::is_same_v<Value, Tensor>;
  return {.name = cat(parameter.name, ".", field),
          .kind = kIsTensor ? tensor_entry(parameter.tensor.scalar_type(), parameter.shape)
                            : tensor_entry(kLong, {}),
          .is_tensor = kIsTensor};
}

// Throws: invalid_argument for a checkpoint that was saved without its optimizer.
json parse_description(const std::string& description) {
  auto parsed = json::parse(description, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object())
    refuse_optimizer(
        "a description of the optimizer", "none", "the checkpoint was saved without its optimizer");
  return parsed;
}

// Returns each name once: a tied parameter may be there twice.
Strings names_of(const PiecesOfGroup& pieces) {
  return distinct(pieces, &TensorPiece::name);
}

// Returns the parameters of LBFGS, which looks at all of them at once, so that no rank may have
// only some of their elements.
PiecesOfGroup whole_group(const TensorPieces& parameters, torch::optim::LBFGS& optimizer) {
  PiecesOfGroup group = pieces_of_groups(parameters, optimizer).at(0);
  for (const TensorPiece* piece : group) {
    if (piece->elements == all_elements(piece->shape) && !piece->is_own)
      continue;
    refuse_optimizer("parameters of LBFGS that are whole, and the same on all ranks",
                     cat(piece->is_own ? "each rank's own '" : "a part of '", piece->name, "'"),
                     "take an optimizer that updates each element independently");
  }
  return group;
}

// A whole model is a model whose parameters are whole pieces.
TensorPieces parameter_pieces(const Module& model) {
  return mapped(model.named_parameters(),
                [&](const auto& item) { return whole_piece(item.key(), item.value()); });
}

// A field of a state is a number or a tensor. In a file both are tensors.
void set_field(int64_t& to, const Tensor& from) {
  to = from.item<int64_t>();
}
void set_field(Tensor& to, const Tensor& from) {
  to = from;
}

Tensor as_tensor(int64_t value) {
  return at::scalar_tensor(value, kLong);
}
Tensor as_tensor(const Tensor& value) {
  return value;
}

// A field of the parameter's state, whose values `tensor` has.
TensorPiece piece_of_field(const StateField& field,
                           const TensorPiece& parameter,
                           const Tensor& tensor) {
  TensorPiece piece = whole_piece(field.name, tensor);
  if (field.is_tensor) {
    piece.shape = parameter.shape;
    piece.elements = parameter.elements;
    piece.owner = parameter.owner;
  }
  piece.is_own = parameter.is_own;
  return piece;
}

// An optimizer of a known kind, whose parameters are some pieces.
template <class Kind>
class OptimizerOfKind {
 public:
  OptimizerOfKind(const TensorPieces& parameters, Optimizer& optimizer)
      : optimizer_(optimizer), groups_(pieces_of_groups(parameters, optimizer)) {}

  OptimizerPieces pieces() const {
    json groups = json::array();
    for (const size_t g : indices_of(groups_)) {
      json saved = {{"options", json::object()}, {"params", names_of(groups_[g])}};
      Kind::options(options_of_group<Kind>(optimizer_, g),
                    [&](const char* name, const auto& value) { saved["options"][name] = value; });
      const auto own = filtered(groups_[g], [](const TensorPiece* piece) { return piece->is_own; });
      if (!own.empty())
        saved[kOwnParams] = names_of(own);
      groups.push_back(std::move(saved));
    }
    OptimizerPieces result;
    result.description = json{{"kind", Kind::kName}, {"groups", std::move(groups)}}.dump();
    for_each_parameter([&](const TensorPiece& parameter, size_t g) {
      const auto found = optimizer_.state().find(parameter.tensor.unsafeGetTensorImpl());
      if (found == optimizer_.state().end())
        return;
      Kind::state(static_cast<State&>(*found->second),
                  options_of_group<Kind>(optimizer_, g),
                  [&](const char* name, const auto& value, bool /*required*/) {
                    const Tensor tensor = as_tensor(value);
                    if (tensor.defined())
                      result.pieces.push_back(
                          piece_of_field(field_of(parameter, name, value), parameter, tensor));
                  });
    });
    return result;
  }

  // Throws: invalid_argument for the state of another kind, or of other groups, parameters and
  // fields.
  void check(const std::string& description, const TensorEntries& entries) const {
    const json saved = parse_description(description);
    const auto options = checked_options(saved);
    for (const size_t g : indices_of(groups_))
      check_names(saved["groups"][g], names_of(groups_[g]), g, /*in_order=*/true);
    const StringSet used = check_fields(entries, options);
    // State that is left over belongs to another optimizer or another model.
    for (const auto& [name, entry] : entries) {
      if (!used.contains(name))
        refuse_optimizer(cat("only state of ", Kind::kName),
                         cat("'", name, "' as well"),
                         "resume with what was saved");
    }
  }

  // As prepare_optimizer.
  InstallState prepare(const std::string& description,
                       const TensorEntries& entries,
                       const FetchTensor& fetch) const {
    const auto options = checked_options(parse_description(description));
    check_fields(entries, options);
    auto states = std::make_shared<std::vector<std::pair<void*, std::unique_ptr<State>>>>();
    for_each_parameter([&](const TensorPiece& parameter, size_t g) {
      if (auto state = fetched_state(parameter, options[g], entries, fetch))
        states->emplace_back(parameter.tensor.unsafeGetTensorImpl(), std::move(state));
    });
    return [states, options, &optimizer = optimizer_] {
      optimizer.state().clear();
      for (auto& [key, state] : *states)
        optimizer.state()[key] = std::move(state);
      for (const size_t g : indices_of(options))
        options_of_group<Kind>(optimizer, g) = options[g];
    };
  }

 private:
  using Options = typename Kind::Options;
  using State = typename Kind::State;

  // Each parameter once, with its group: a tied one may be there twice.
  void for_each_parameter(const auto& use) const {
    std::set<const TensorPiece*> seen;
    for (const size_t g : indices_of(groups_))
      for (const TensorPiece* parameter : groups_[g])
        if (seen.insert(parameter).second)
          use(*parameter, g);
  }

  // Returns the saved options of every group. Throws: invalid_argument if the kind of optimizer or
  // the number of groups differs.
  std::vector<Options> checked_options(const json& description) const {
    const auto kind = description.value("kind", json());
    if (kind != Kind::kName)
      refuse_optimizer(cat("the state of ", Kind::kName),
                       kind.dump(),
                       "resume with the optimizer that was saved");
    const auto saved = description.value("groups", json());
    if (!saved.is_array() || saved.size() != groups_.size())
      refuse_optimizer(plural(groups_.size(), "parameter group"),
                       cat(saved.size()),
                       "make the same groups as when saving, with those of add_param_group, before "
                       "the state is loaded");
    return mapped_indices(groups_.size(), [&](size_t g) {
      Options options = options_of_group<Kind>(optimizer_, g);
      const json values = member_or_null(saved[g], "options");
      Kind::options(options, [&](const char* name, auto& value) {
        detail::read_option(member_or_null(values, name), name, value);
      });
      return options;
    });
  }

  // Checks the fields that each parameter has in the file. Returns the names that are some field's.
  StringSet check_fields(const TensorEntries& entries, const std::vector<Options>& options) const {
    StringSet used;
    for_each_parameter([&](const TensorPiece& parameter, size_t g) {
      check_fields_of(parameter, options[g], entries, used);
    });
    return used;
  }

  // Checks the fields of one parameter that the file has, and adds their names to `used`.
  static void check_fields_of(const TensorPiece& parameter,
                              const Options& options,
                              const TensorEntries& entries,
                              StringSet& used) {
    State state;
    Strings missing;
    bool any = false;
    Kind::state(state, options, [&](const char* name, auto& value, bool required) {
      const StateField field = field_of(parameter, name, value);
      const TensorEntry* const found = value_at(entries, field.name);
      if (found == nullptr) {
        if (required)
          missing.push_back(field.name);
        return;
      }
      any = true;
      used.insert(field.name);
      if (!found->same_kind(field.kind))
        refuse_optimizer(cat(to_string(field.kind), " '", field.name, "'"),
                         to_string(*found),
                         "resume with the model that was saved");
    });
    // A parameter that never had a gradient has no state at all, in most optimizers.
    const bool needs_all = any || Kind::kEveryParameter;
    if (needs_all && !missing.empty())
      refuse_optimizer(in_quotes(missing[0]), "no such tensor", "the checkpoint is incomplete");
  }

  // Builds the state of one parameter from what was saved. Returns null if it had none.
  static std::unique_ptr<State> fetched_state(const TensorPiece& parameter,
                                              const Options& options,
                                              const TensorEntries& entries,
                                              const FetchTensor& fetch) {
    auto state = std::make_unique<State>();
    bool any = false;
    Kind::state(*state, options, [&](const char* name, auto& value, bool /*required*/) {
      const StateField field = field_of(parameter, name, value);
      if (!entries.contains(field.name))
        return;
      TensorPiece piece = piece_of_field(
          field,
          parameter,
          field.is_tensor ? at::empty_like(parameter.tensor) : as_tensor(int64_t{0}));
      fetch(piece);
      set_field(value, piece.tensor);
      any = true;
    });
    return any ? std::move(state) : nullptr;
  }

  Optimizer& optimizer_;
  std::vector<PiecesOfGroup> groups_;
};

// The description of all ranks' optimizers, to which each rank's is added.
class MergedDescription {
 public:
  // Throws: invalid_argument for another kind of optimizer, or other groups, than those before.
  void add(const json& one) {
    if (merged_.is_null())
      begin_with(one);
    if (one["kind"] != merged_["kind"] || one["groups"].size() != merged_["groups"].size()) {
      refuse_optimizer(cat("the same optimizer on every rank, ",
                           merged_["kind"].dump(),
                           " of ",
                           merged_["groups"].size(),
                           " groups"),
                       cat(one["kind"].dump(), " of ", one["groups"].size()),
                       "make them alike");
    }
    for (const size_t g : indices_of(merged_["groups"])) {
      const json own = one["groups"][g].value(kOwnParams, json::array());
      for (const json& name : one["groups"][g]["params"])
        add(name, g, contains(own, name));
    }
  }
  std::string text() const { return merged_.dump(); }

 private:
  void begin_with(const json& first) {
    merged_ = first;
    for (json& group : merged_["groups"]) {
      group["params"] = json::array();
      group.erase(kOwnParams);
    }
  }

  // Parts of one parameter in two groups have two rates, and their state would be loaded as that of
  // one of them. A rank that has the parameter whole, with a state of its own, may group it by
  // itself.
  void add(const std::string& name, size_t group, bool is_own) {
    const auto [known, is_new] = group_of_.try_emplace(name, group);
    if (is_new)
      merged_["groups"][group]["params"].push_back(name);
    if (known->second != group && !is_own)
      refuse_optimizer(cat("'", name, "' in one parameter group on all ranks"),
                       cat("it in groups ", known->second, " and ", group),
                       "divide groups of whole parameters, as sharded.parameters(groups) does");
  }

  json merged_;
  std::map<std::string, size_t> group_of_;  // by a parameter's name
};

template <class... Classes>
bool is_or_derives_from(const Optimizer& optimizer) {
  return ((dynamic_cast<const Classes*>(&optimizer) != nullptr) || ...);
}

}  // namespace

bool has_saved_kind(const Optimizer& optimizer) {
  return is_or_derives_from<torch::optim::SGD,
                            torch::optim::Adam,
                            torch::optim::AdamW,
                            torch::optim::RMSprop,
                            torch::optim::Adagrad,
                            torch::optim::LBFGS>(optimizer);
}

void require_plain(const Optimizer& optimizer) {
  if (optim::is_plain(optimizer) || !has_saved_kind(optimizer))
    return;
  refuse_optimizer("a class of torch::optim or muster::optim itself",
                   cat(c10::demangle(typeid(optimizer).name()),
                       ", which is derived from one and may have members of its own"),
                   "give it state() and load_state() with a SavedState of these, an empty one if "
                   "it has none, and add it to Checkpoints, which saves them beside the state of "
                   "its base");
}

OptimizerPieces optimizer_pieces(const TensorPieces& parameters, Optimizer& optimizer) {
  if (auto* const lbfgs = dynamic_cast<torch::optim::LBFGS*>(&optimizer))
    return detail::lbfgs_pieces(names_of(whole_group(parameters, *lbfgs)), *lbfgs);
  return with_kind(optimizer, [&]<class Kind>(Kind) {
    return OptimizerOfKind<Kind>(parameters, optimizer).pieces();
  });
}

// If the parameters are whole, the pieces are the tensors themselves.
OptimizerSnapshot snapshot_optimizer(const Module& model, Optimizer& optimizer) {
  OptimizerPieces pieces = optimizer_pieces(parameter_pieces(model), optimizer);
  OptimizerSnapshot snapshot{.description = std::move(pieces.description)};
  for (TensorPiece& piece : pieces.pieces)
    snapshot.tensors.emplace(piece.name, std::move(piece.tensor));
  return snapshot;
}

std::string merge_descriptions(const Strings& descriptions) {
  const auto empty = std::ranges::count_if(
      descriptions, [](const std::string& description) { return description.empty(); });
  if (empty == std::ssize(descriptions))
    return {};
  if (empty > 0)
    refuse_optimizer("an optimizer on every rank", "none on some", "add it on all of them");
  MergedDescription merged;
  for (const auto& description : descriptions)
    merged.add(parse_description(description));
  return merged.text();
}

// Ranks list the parameters that they have, so the order of all of them together is arbitrary.
void check_same_parameters(const std::string& description, const std::string& saved) {
  const json mine = parse_description(description), theirs = parse_description(saved);
  const json groups = theirs.value("groups", json());
  for (size_t g = 0; g < mine["groups"].size() && groups.is_array() && g < groups.size(); ++g)
    check_names(groups[g],
                mine["groups"][g]["params"].get<Strings>(),
                g,
                /*in_order=*/false);
}

void check_optimizer(const Module& model,
                     Optimizer& optimizer,
                     const std::string& description,
                     const TensorEntries& entries) {
  const TensorPieces parameters = parameter_pieces(model);
  if (auto* const lbfgs = dynamic_cast<torch::optim::LBFGS*>(&optimizer)) {
    const auto names = names_of(pieces_of_groups(parameters, optimizer).at(0));
    detail::prepare_lbfgs(names, *lbfgs, description, entries, [](TensorPiece&) {});
    return;
  }
  with_kind(optimizer, [&]<class Kind>(Kind) {
    OptimizerOfKind<Kind>(parameters, optimizer).check(description, entries);
  });
}

InstallState prepare_optimizer(const TensorPieces& parameters,
                               Optimizer& optimizer,
                               const std::string& description,
                               const TensorEntries& entries,
                               const FetchTensor& fetch) {
  const NoGradGuard no_grad;
  if (auto* const lbfgs = dynamic_cast<torch::optim::LBFGS*>(&optimizer)) {
    const auto names = names_of(whole_group(parameters, *lbfgs));
    return detail::prepare_lbfgs(names, *lbfgs, description, entries, fetch);
  }
  return with_kind(optimizer, [&]<class Kind>(Kind) {
    return OptimizerOfKind<Kind>(parameters, optimizer).prepare(description, entries, fetch);
  });
}

void restore_optimizer(const Module& model,
                       Optimizer& optimizer,
                       const std::string& description,
                       const TensorEntries& entries,
                       const FetchTensor& fetch) {
  check_optimizer(model, optimizer, description, entries);
  prepare_optimizer(parameter_pieces(model), optimizer, description, entries, fetch)();
}

void restore_optimizer(const Module& model, Optimizer& optimizer, OptimizerSnapshot snapshot) {
  // A tensor that lies as it must and is nobody else's becomes the state itself: a large one is not
  // there twice.
  const auto fetch = [&](TensorPiece& piece) {
    Tensor& saved = snapshot.tensors.at(piece.name);
    const bool lies_as_it_must =
        saved.device() == piece.tensor.device() && saved.strides() == piece.tensor.strides();
    const bool is_alone = saved.use_count() == 1 && saved.storage().use_count() == 1;
    if (lies_as_it_must && is_alone) {
      piece.tensor = std::move(saved);
    } else {
      piece.tensor.copy_(saved);
    }
  };
  restore_optimizer(model, optimizer, snapshot.description, entries_of(snapshot.tensors), fetch);
}

std::vector<StringMap> options_of_groups(Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr)
    return {};
  return with_kind(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    std::vector<StringMap> groups(optimizer.param_groups().size());
    for (const size_t g : indices_of(groups))
      Kind::options(options_of_group<Kind>(optimizer, g), [&](const char* name, const auto& value) {
        groups[g][name] = json(value).dump();
      });
    for (auto& options : groups)
      options.erase("lr");
    return groups;
  });
}

}  // namespace muster
