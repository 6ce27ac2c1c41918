// Optimizers of parts and optimizers of whole parameters, and how the state of one becomes the
// other's. A state is looked at as a step and a list of tensors, each shaped as the parameter.
// Gathering: ranks exchange which states there are, since one may have none of a parameter; then
// each tensor is gathered in the flat layout. Sharding needs no exchange.
#include "muster/parallel/sharded/optimizer_parts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// The fields of a state, whatever its kind.
struct PartFields {
  std::unique_ptr<OptimizerParamState> own;  // where it was made here
  int64_t* step = nullptr;                   // null: the kind has none
  std::vector<Tensor*> tensors;
};

// part_fields() has looked at the optimizer's kind, so a given state is of this type.
template <class State>
State& part_state(OptimizerParamState* given, PartFields& fields) {
  if (given != nullptr)
    return static_cast<State&>(*given);
  auto made = std::make_unique<State>();
  State& state = *made;
  fields.own = std::move(made);
  return state;
}

template <class State>
PartFields part_adam(OptimizerParamState* given) {
  PartFields fields;
  auto& state = part_state<State>(given, fields);
  fields.step = &state.step();
  fields.tensors = {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
  return fields;
}

template <class Kind>
bool part_is(const Optimizer& optimizer) {
  return dynamic_cast<const Kind*>(&optimizer) != nullptr;
}

// The fields of `given`, or of a new state where that is null. LibTorch has no common interface for
// them, so each kind is named here. AdamW is no Adam.
PartFields part_fields(Optimizer& optimizer, OptimizerParamState* given) {
  PartFields fields;
  if (part_is<torch::optim::SGD>(optimizer)) {
    fields.tensors = {&part_state<torch::optim::SGDParamState>(given, fields).momentum_buffer()};
  } else if (part_is<torch::optim::Adam>(optimizer)) {
    return part_adam<torch::optim::AdamParamState>(given);
  } else if (part_is<torch::optim::AdamW>(optimizer)) {
    return part_adam<torch::optim::AdamWParamState>(given);
  } else if (part_is<torch::optim::Adagrad>(optimizer)) {
    auto& state = part_state<torch::optim::AdagradParamState>(given, fields);
    fields.step = &state.step();
    fields.tensors = {&state.sum()};
  } else if (part_is<torch::optim::RMSprop>(optimizer)) {
    auto& state = part_state<torch::optim::RMSpropParamState>(given, fields);
    fields.step = &state.step();
    fields.tensors = {&state.square_avg(), &state.momentum_buffer(), &state.grad_avg()};
  } else {
    throw invalid_argument("optimizer state: expected SGD, Adam, AdamW, Adagrad or RMSprop, got ",
                           c10::demangle(typeid(optimizer).name()),
                           "; save its parts yourself");
  }
  return fields;
}

// Whether both are of a kind that torch::optim has, or derived from it, as muster::optim's are.
template <class... Kinds>
bool part_kinds_match(const Optimizer& one, const Optimizer& other) {
  return ((part_is<Kinds>(one) && part_is<Kinds>(other)) || ...);
}

// Fields are matched by their order, so both optimizers must be of one kind.
void part_check_kinds(Optimizer& part, Optimizer& whole) {
  const bool match = part_kinds_match<torch::optim::SGD,
                                      torch::optim::Adam,
                                      torch::optim::AdamW,
                                      torch::optim::Adagrad,
                                      torch::optim::RMSprop>(part, whole);
  if (match || typeid(part) == typeid(whole))
    return;
  throw invalid_argument("optimizer state: expected two optimizers of one kind, got ",
                         c10::demangle(typeid(part).name()),
                         " of the parts and ",
                         c10::demangle(typeid(whole).name()),
                         " of the whole; make them alike");
}

// It returns null where the optimizer has no state of the tensor yet.
OptimizerParamState* part_found(Optimizer& optimizer, const Tensor& tensor) {
  const auto* const found = value_at(optimizer.state(), tensor.unsafeGetTensorImpl());
  return found == nullptr ? nullptr : found->get();
}

// What a rank knows of a parameter's state: the step, and which tensors there are.
struct PartEntry {
  int64_t step = 0;
  uint32_t known = 0;  // 1: there is a state
  uint32_t tensors = 0;
};

// A rank that knows the state decides; all that know it agree.
std::vector<PartEntry> part_entries_of_all(const std::vector<PartEntry>& mine,
                                           ProcessGroup& group) {
  std::vector<PartEntry> all(mine.size());
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(PartEntry));
  for (const std::string& other : group.all_gather_bytes(bytes, "optimizer state")) {
    std::vector<PartEntry> theirs(mine.size());
    std::memcpy(theirs.data(), other.data(), std::min(other.size(), bytes.size()));
    for (const size_t i : indices_of(all))
      if (theirs[i].known != 0)
        all[i] = theirs[i];
  }
  return all;
}

// What this rank's pieces know of the parameters' states.
std::vector<PartEntry> part_entries_of_rank(const OptimizerParts& parts, Optimizer& part) {
  std::vector<PartEntry> mine(parts.parameters.size());
  for (const size_t i : indices_of(parts.pieces)) {
    OptimizerParamState* const state = part_found(part, parts.tensors[i]);
    if (state == nullptr)
      continue;
    const PartFields fields = part_fields(part, state);
    PartEntry& entry = mine[parts.pieces[i].parameter];
    entry.known = 1;
    if (fields.step != nullptr)
      entry.step = *fields.step;
    for (const size_t f : indices_of(fields.tensors))
      if (fields.tensors[f]->defined())
        entry.tensors |= 1U << f;
  }
  return mine;
}

// Gives each parameter that has a state on some rank a state in `whole`, without tensors yet.
void part_make_states(const OptimizerParts& parts,
                      const std::vector<PartEntry>& entries,
                      Optimizer& whole) {
  for (const size_t i : indices_of(entries)) {
    if (entries[i].known == 0)
      continue;
    PartFields fields = part_fields(whole, nullptr);
    if (fields.step != nullptr)
      *fields.step = entries[i].step;
    whole.state()[parts.parameters[i].unsafeGetTensorImpl()] = std::move(fields.own);
  }
}

// Gathers the `field`-th tensor of all states, in the layout of the parameters. Collective: all
// ranks call it for the same fields.
void part_gather_field(const OptimizerParts& parts,
                       size_t field,
                       const std::vector<PartEntry>& entries,
                       Optimizer& part,
                       Optimizer& whole,
                       ProcessGroup& group) {
  const Tensor own = at::zeros({parts.layout.part}, parts.options);
  for (const size_t i : indices_of(parts.pieces)) {
    OptimizerParamState* const state = part_found(part, parts.tensors[i]);
    if (state == nullptr)
      continue;
    const Tensor& value = *part_fields(part, state).tensors[field];
    if (value.defined())
      own.narrow(0, parts.pieces[i].at, parts.pieces[i].length).copy_(value);
  }
  const Tensor all = at::empty({parts.layout.length()}, own.options());
  group.all_gather(all, own);
  for (const size_t i : indices_of(entries)) {
    if ((entries[i].tensors >> field & 1U) == 0)
      continue;
    OptimizerParamState* const state = part_found(whole, parts.parameters[i]);
    *part_fields(whole, state).tensors[field] = parts.layout.place(all, i).clone();
  }
}

}  // namespace

// All ranks call it together. Entries of all ranks decide which fields there are, so all gather the
// same.
void gather_optimizer_state(const OptimizerParts& parts,
                            Optimizer& part,
                            Optimizer& whole,
                            ProcessGroup& group) {
  part_check_kinds(part, whole);
  const NoGradGuard no_grad;
  const std::vector<PartEntry> entries =
      part_entries_of_all(part_entries_of_rank(parts, part), group);
  part_make_states(parts, entries, whole);
  uint32_t any = 0;
  for (const PartEntry& entry : entries)
    any |= entry.tensors;
  for (size_t f = 0; any >> f != 0; ++f)
    if ((any >> f & 1U) != 0)
      part_gather_field(parts, f, entries, part, whole, group);
}

// It exchanges nothing, since every rank has the whole state.
void divide_optimizer_state(const OptimizerParts& parts, Optimizer& part, Optimizer& whole) {
  part_check_kinds(part, whole);
  const NoGradGuard no_grad;
  for (const size_t i : indices_of(parts.pieces)) {
    const FlatPiece& piece = parts.pieces[i];
    void* const key = parts.tensors[i].unsafeGetTensorImpl();
    OptimizerParamState* const state = part_found(whole, parts.parameters[piece.parameter]);
    if (state == nullptr) {
      part.state().erase(key);
      continue;
    }
    const PartFields from = part_fields(whole, state);
    PartFields to = part_fields(part, nullptr);
    if (from.step != nullptr)
      *to.step = *from.step;
    for (const size_t f : indices_of(from.tensors)) {
      if (from.tensors[f]->defined())
        *to.tensors[f] =
            from.tensors[f]->reshape({-1}).narrow(0, piece.begin, piece.length).clone();
    }
    part.state()[key] = std::move(to.own);
  }
}

void copy_group_options(Optimizer& from, Optimizer& to) {
  part_check_kinds(from, to);
  copy_options_of_any(from, to);
}

// Optimizers with another number of groups keep their own options.
void copy_options_of_any(Optimizer& from, Optimizer& to) {
  auto& groups = from.param_groups();
  if (groups.size() != to.param_groups().size())
    return;
  for (const size_t g : indices_of(groups))
    to.param_groups()[g].set_options(groups[g].options().clone());
}

}  // namespace muster
