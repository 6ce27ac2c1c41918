#include "muster/checkpoint/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using nlohmann::json;
using torch::optim::Optimizer;

// What is particular to each kind of optimizer: its name, its options, and its state's fields with whether
// they must be there under those options.
struct SgdKind {
  using Class = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  static constexpr bool kEveryParameter = false;
  static void options(Options& o, auto&& field) {
    field("lr", o.lr());
    field("momentum", o.momentum());
    field("dampening", o.dampening());
    field("weight_decay", o.weight_decay());
    field("nesterov", o.nesterov());
  }
  static void state(State& s, const Options&, auto&& field) {
    field("momentum_buffer", s.momentum_buffer(), true);
  }
};

template <class ClassT, class OptionsT, class StateT>
struct AdamLike {
  using Class = ClassT;
  using Options = OptionsT;
  using State = StateT;
  static constexpr bool kEveryParameter = false;
  static void options(Options& o, auto&& field) {
    field("lr", o.lr());
    field("betas", o.betas());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("amsgrad", o.amsgrad());
  }
  static void state(State& s, const Options& o, auto&& field) {
    field("step", s.step(), true);
    field("exp_avg", s.exp_avg(), true);
    field("exp_avg_sq", s.exp_avg_sq(), true);
    field("max_exp_avg_sq", s.max_exp_avg_sq(), o.amsgrad());
  }
};
struct AdamKind : AdamLike<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};
struct AdamWKind : AdamLike<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};

struct RmspropKind {
  using Class = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";
  static constexpr bool kEveryParameter = false;
  static void options(Options& o, auto&& field) {
    field("lr", o.lr());
    field("alpha", o.alpha());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("momentum", o.momentum());
    field("centered", o.centered());
  }
  static void state(State& s, const Options& o, auto&& field) {
    field("step", s.step(), true);
    field("square_avg", s.square_avg(), true);
    field("momentum_buffer", s.momentum_buffer(), o.momentum() > 0);
    field("grad_avg", s.grad_avg(), o.centered());
  }
};

struct AdagradKind {
  using Class = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";
  static constexpr bool kEveryParameter = true;  // its constructor makes all state, its step relies on it
  static void options(Options& o, auto&& field) {
    field("lr", o.lr());
    field("lr_decay", o.lr_decay());
    field("weight_decay", o.weight_decay());
    field("initial_accumulator_value", o.initial_accumulator_value());
    field("eps", o.eps());
  }
  static void state(State& s, const Options&, auto&& field) {
    field("step", s.step(), true);
    field("sum", s.sum(), true);
  }
};

[[noreturn]] void refuse_optimizer(const std::string& expected, const std::string& got,
                                   const std::string& next) {
  throw Error(ErrorCode::invalid_argument,
              cat("optimizer state: expected ", expected, ", got ", got, "; ", next));
}

// Calls `use` with the optimizer's kind.
auto with_kind(Optimizer& optimizer, auto&& use) {
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) return use(SgdKind{});
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) return use(AdamKind{});
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) return use(AdamWKind{});
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) return use(RmspropKind{});
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) return use(AdagradKind{});
  refuse_optimizer("SGD, Adam, AdamW, RMSprop or Adagrad", c10::demangle(typeid(optimizer).name()),
                   "save its state yourself, or use one of these");
}

// A parameter of the optimizer under the model's name.
struct Parameter {
  std::string name;
  at::Tensor tensor;
};

std::vector<std::vector<Parameter>> named_groups(const torch::nn::Module& model, Optimizer& optimizer) {
  std::unordered_map<void*, std::string> names;
  for (const auto& item : model.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<std::vector<Parameter>> groups;
  for (const auto& group : optimizer.param_groups()) {
    auto& named = groups.emplace_back();
    for (const auto& tensor : group.params()) {
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      if (found == names.end()) {
        refuse_optimizer("only parameters of the model",
                         cat("one of shape [", join(tensor.sizes(), ", "), "] in group ", groups.size() - 1,
                             " that the model does not name"),
                         "pass the model whose parameters the optimizer was made with");
      }
      named.push_back({found->second, tensor});
    }
  }
  return groups;
}

void read_option(const json& value, const std::string& name, double& to) {
  if (!value.is_number())
    refuse_optimizer(cat("a number as option '", name, "'"), value.dump(), "the manifest is damaged");
  to = value.get<double>();
}
void read_option(const json& value, const std::string& name, bool& to) {
  if (!value.is_boolean())
    refuse_optimizer(cat("true or false as option '", name, "'"), value.dump(), "the manifest is damaged");
  to = value.get<bool>();
}
void read_option(const json& value, const std::string& name, std::tuple<double, double>& to) {
  if (!value.is_array() || value.size() != 2)
    refuse_optimizer(cat("two numbers as option '", name, "'"), value.dump(), "the manifest is damaged");
  read_option(value[0], name, std::get<0>(to));
  read_option(value[1], name, std::get<1>(to));
}

// The options of every group, once kind, groups and parameters are found to agree.
template <class Kind>
std::vector<typename Kind::Options> checked_options(const json& description, Optimizer& optimizer,
                                                    const std::vector<std::vector<Parameter>>& groups) {
  const auto kind = description.value("kind", json());
  if (kind != Kind::kName)
    refuse_optimizer(cat("the state of ", Kind::kName), kind.dump(),
                     "resume with the optimizer that was saved");
  const auto saved = description.value("groups", json());
  if (!saved.is_array() || saved.size() != groups.size())
    refuse_optimizer(cat(groups.size(), " parameter group(s)"), cat(saved.size()),
                     "make the same groups as when saving");
  std::vector<typename Kind::Options> all;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::string> mine;
    for (const auto& parameter : groups[g]) mine.push_back(parameter.name);
    const auto theirs = saved[g].is_object() ? saved[g].value("params", json()) : json();
    for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
      const auto here = i < mine.size() ? json(mine[i]) : json("no more");
      const auto there = theirs.is_array() && i < theirs.size() ? theirs[i] : json("no more");
      if (here != there) {
        refuse_optimizer(cat("parameter ", here.dump(), " at place ", i, " of group ", g), there.dump(),
                         "make the same groups as when saving");
      }
    }
    auto options = static_cast<typename Kind::Options&>(optimizer.param_groups()[g].options());
    Kind::options(options, [&](const char* name, auto& value) {
      read_option(saved[g].value("options", json::object()).value(name, json()), name, value);
    });
    all.push_back(options);
  }
  return all;
}

// Fields that each parameter has in the file, after checking that every tensor belongs to one and fits it.
template <class Kind>
void check_tensors(const TensorEntries& entries, const std::vector<std::vector<Parameter>>& groups,
                   const std::vector<typename Kind::Options>& options) {
  std::set<std::string> used;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& parameter : groups[g]) {
      typename Kind::State state;
      std::vector<std::string> missing;
      size_t present = 0;
      const auto check = [&](const char* field, auto& value, bool required) {
        const auto name = cat(parameter.name, ".", field);
        const auto found = entries.find(name);
        if (found == entries.end()) {
          if (required) missing.push_back(name);
          return;
        }
        ++present;
        used.insert(name);
        TensorEntry expected = tensor_entry(torch::kInt64, {});
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>)
          expected = tensor_entry(parameter.tensor.scalar_type(), parameter.tensor.sizes().vec());
        if (!found->second.same_kind(expected)) {
          refuse_optimizer(cat(to_string(expected), " '", name, "'"), to_string(found->second),
                           "resume with the model that was saved");
        }
      };
      Kind::state(state, options[g], check);
      // A parameter that never had a gradient has no state at all, in most optimizers.
      if (!missing.empty() && (present > 0 || Kind::kEveryParameter))
        refuse_optimizer(cat("'", missing[0], "'"), "no such tensor", "the checkpoint is incomplete");
    }
  }
  for (const auto& [name, entry] : entries) {
    if (!used.contains(name))
      refuse_optimizer(cat("only state of ", Kind::kName), cat("'", name, "' as well"),
                       "resume with what was saved");
  }
}

json parse_description(const std::string& description) {
  auto parsed = json::parse(description, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object())
    refuse_optimizer("a description of the optimizer", "none",
                     "the checkpoint was saved without its optimizer");
  return parsed;
}

TensorEntries entries_of(const NamedTensors& tensors) {
  TensorEntries entries;
  for (const auto& [name, tensor] : tensors)
    entries[name] = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
  return entries;
}

void set_field(int64_t& to, const at::Tensor& from, const at::Tensor&) {
  to = from.item<int64_t>();
}
void set_field(at::Tensor& to, const at::Tensor& from, const at::Tensor& parameter) {
  to = torch::empty_like(parameter);
  to.copy_(from);
}

at::Tensor as_tensor(int64_t value) {
  return torch::scalar_tensor(value, torch::kInt64);
}
at::Tensor as_tensor(const at::Tensor& value) {
  return value;
}

}  // namespace

OptimizerSnapshot snapshot_optimizer(const torch::nn::Module& model, Optimizer& optimizer) {
  return with_kind(optimizer, [&]<class Kind>(Kind) {
    OptimizerSnapshot snapshot;
    json groups = json::array();
    const auto named = named_groups(model, optimizer);
    for (size_t g = 0; g < named.size(); ++g) {
      auto& options = static_cast<typename Kind::Options&>(optimizer.param_groups()[g].options());
      json saved = {{"options", json::object()}, {"params", json::array()}};
      Kind::options(options, [&](const char* name, const auto& value) { saved["options"][name] = value; });
      for (const auto& entry : named[g]) {
        const auto& name = entry.name;
        const at::Tensor& tensor = entry.tensor;
        saved["params"].push_back(name);
        const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        auto& state = static_cast<typename Kind::State&>(*found->second);
        Kind::state(state, options, [&](const char* field, const auto& value, bool) {
          if (const auto field_tensor = as_tensor(value); field_tensor.defined())
            snapshot.tensors.emplace(cat(name, ".", field), field_tensor);
        });
      }
      groups.push_back(std::move(saved));
    }
    snapshot.description = json{{"kind", Kind::kName}, {"groups", std::move(groups)}}.dump();
    return snapshot;
  });
}

void check_optimizer(const torch::nn::Module& model, Optimizer& optimizer, const std::string& description,
                     const TensorEntries& entries) {
  with_kind(optimizer, [&]<class Kind>(Kind) {
    const auto groups = named_groups(model, optimizer);
    check_tensors<Kind>(entries, groups,
                        checked_options<Kind>(parse_description(description), optimizer, groups));
  });
}

void restore_optimizer(const torch::nn::Module& model, Optimizer& optimizer,
                       const OptimizerSnapshot& snapshot) {
  const torch::NoGradGuard no_grad;
  with_kind(optimizer, [&]<class Kind>(Kind) {
    const auto groups = named_groups(model, optimizer);
    const auto options = checked_options<Kind>(parse_description(snapshot.description), optimizer, groups);
    check_tensors<Kind>(entries_of(snapshot.tensors), groups, options);

    // Made whole before anything is changed.
    std::vector<std::pair<void*, std::unique_ptr<typename Kind::State>>> states;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const auto& parameter : groups[g]) {
        auto state = std::make_unique<typename Kind::State>();
        bool any = false;
        Kind::state(*state, options[g], [&](const char* field, auto& value, bool) {
          const auto found = snapshot.tensors.find(cat(parameter.name, ".", field));
          if (found == snapshot.tensors.end()) return;
          set_field(value, found->second, parameter.tensor);
          any = true;
        });
        if (any) states.emplace_back(parameter.tensor.unsafeGetTensorImpl(), std::move(state));
      }
    }
    optimizer.state().clear();
    for (auto& [key, state] : states) optimizer.state()[key] = std::move(state);
    for (size_t g = 0; g < groups.size(); ++g)
      static_cast<typename Kind::Options&>(optimizer.param_groups()[g].options()) = options[g];
  });
}

}  // namespace muster
