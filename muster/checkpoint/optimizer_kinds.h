// The particulars of each kind of optimizer whose state can be saved: its name, its options, and
// its state's fields, with whether these must exist under those options. Only for
// optimizer_state.cc.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "muster/base/refusal.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"

namespace muster::detail {

using nlohmann::json;

struct SgdKind {
  using Class = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr auto kName = "SGD";
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
struct AdamKind
    : AdamLike<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr auto kName = "Adam";
};
struct AdamWKind
    : AdamLike<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr auto kName = "AdamW";
};

struct RmspropKind {
  using Class = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr auto kName = "RMSprop";
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
  static constexpr auto kName = "Adagrad";
  static constexpr bool kEveryParameter =
      true;  // its constructor makes all state; its step relies on it
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

inline constexpr Refusal refuse_optimizer{"optimizer state"};

// Calls `use` with the optimizer's kind.
auto with_kind(Optimizer& optimizer, auto&& use) {
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr)
    return use(SgdKind{});
  if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr)
    return use(AdamKind{});
  if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr)
    return use(AdamWKind{});
  if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr)
    return use(RmspropKind{});
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr)
    return use(AdagradKind{});
  refuse_optimizer(
      "SGD, Adam, AdamW, RMSprop, Adagrad or LBFGS",
      c10::demangle(typeid(optimizer).name()),
      "give it state() and load_state() with a SavedState, by which Checkpoints saves it as any "
      "other part, or use one of these");
}

inline void read_option(const json& value, const std::string& name, double& to) {
  if (!value.is_number())
    refuse_optimizer(
        cat("a number as option '", name, "'"), value.dump(), "the manifest is damaged");
  to = value.get<double>();
}
inline void read_option(const json& value, const std::string& name, bool& to) {
  if (!value.is_boolean())
    refuse_optimizer(
        cat("true or false as option '", name, "'"), value.dump(), "the manifest is damaged");
  to = value.get<bool>();
}
inline void read_option(const json& value,
                        const std::string& name,
                        std::tuple<double, double>& to) {
  if (!value.is_array() || value.size() != 2)
    refuse_optimizer(
        cat("two numbers as option '", name, "'"), value.dump(), "the manifest is damaged");
  read_option(value[0], name, std::get<0>(to));
  read_option(value[1], name, std::get<1>(to));
}

}  // namespace muster::detail
