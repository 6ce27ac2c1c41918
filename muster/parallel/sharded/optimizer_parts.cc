#include "muster/parallel/sharded/optimizer_parts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

// What a state consists of, whatever its kind.
struct PartFields {
  std::unique_ptr<OptimizerParamState> own;  // where it was made here
  int64_t* step = nullptr;                   // null: the kind has none
  std::vector<at::Tensor*> tensors;
};

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

// Of `given`, or of a new state.
PartFields part_fields(Optimizer& optimizer, OptimizerParamState* given) {
  PartFields fields;
  if (dynamic_cast<torch::optim::SGD*>(&optimizer) != nullptr) {
    fields.tensors = {&part_state<torch::optim::SGDParamState>(given, fields).momentum_buffer()};
  } else if (dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr) {
    return part_adam<torch::optim::AdamParamState>(given);
  } else if (dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr) {
    return part_adam<torch::optim::AdamWParamState>(given);
  } else if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) != nullptr) {
    auto& state = part_state<torch::optim::AdagradParamState>(given, fields);
    fields.step = &state.step();
    fields.tensors = {&state.sum()};
  } else if (dynamic_cast<torch::optim::RMSprop*>(&optimizer) != nullptr) {
    auto& state = part_state<torch::optim::RMSpropParamState>(given, fields);
    fields.step = &state.step();
    fields.tensors = {&state.square_avg(), &state.momentum_buffer(), &state.grad_avg()};
  } else {
    throw Error(ErrorCode::invalid_argument,
                cat("optimizer state: expected SGD, Adam, AdamW, Adagrad or RMSprop, got ",
                    c10::demangle(typeid(optimizer).name()),
                    "; save its parts yourself"));
  }
  return fields;
}

void part_check_kinds(Optimizer& part, Optimizer& whole) {
  if (typeid(part) == typeid(whole))
    return;
  throw Error(ErrorCode::invalid_argument,
              cat("optimizer state: expected two optimizers of one kind, got ",
                  c10::demangle(typeid(part).name()),
                  " of the parts and ",
                  c10::demangle(typeid(whole).name()),
                  " of the whole; make them alike"));
}

OptimizerParamState* part_found(Optimizer& optimizer, const at::Tensor& tensor) {
  const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

// Of each parameter what a rank knows of it: the step, and which tensors there are.
struct PartEntry {
  int64_t step = 0;
  uint32_t known = 0;  // 1: there is a state
  uint32_t tensors = 0;
};

std::vector<PartEntry> part_entries_of_all(const std::vector<PartEntry>& mine,
                                           ProcessGroup& group) {
  std::vector<PartEntry> all(mine.size());
  const std::string bytes(reinterpret_cast<const char*>(mine.data()),
                          mine.size() * sizeof(PartEntry));
  for (const std::string& other : group.all_gather_bytes(bytes, "optimizer state")) {
    std::vector<PartEntry> theirs(mine.size());
    std::memcpy(theirs.data(), other.data(), std::min(other.size(), bytes.size()));
    for (size_t i = 0; i < all.size(); ++i)
      if (theirs[i].known != 0)
        all[i] = theirs[i];
  }
  return all;
}

}  // namespace

void gather_optimizer_state(const OptimizerParts& parts,
                            Optimizer& part,
                            Optimizer& whole,
                            ProcessGroup& group) {
  part_check_kinds(part, whole);
  const at::NoGradGuard no_grad;
  std::vector<PartEntry> mine(parts.parameters.size());
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    OptimizerParamState* const state = part_found(part, parts.tensors[i]);
    if (state == nullptr)
      continue;
    const PartFields fields = part_fields(part, state);
    PartEntry& entry = mine[parts.pieces[i].parameter];
    entry.known = 1;
    if (fields.step != nullptr)
      entry.step = *fields.step;
    for (size_t f = 0; f < fields.tensors.size(); ++f)
      if (fields.tensors[f]->defined())
        entry.tensors |= 1U << f;
  }
  const std::vector<PartEntry> entries = part_entries_of_all(mine, group);
  uint32_t any = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    any |= entries[i].tensors;
    if (entries[i].known == 0)
      continue;
    PartFields fields = part_fields(whole, nullptr);
    if (fields.step != nullptr)
      *fields.step = entries[i].step;
    whole.state()[parts.parameters[i].unsafeGetTensorImpl()] = std::move(fields.own);
  }
  for (size_t f = 0; any >> f != 0; ++f) {
    if ((any >> f & 1U) == 0)
      continue;
    const at::Tensor own = at::zeros({parts.layout.part}, parts.options);
    for (size_t i = 0; i < parts.pieces.size(); ++i) {
      OptimizerParamState* const state = part_found(part, parts.tensors[i]);
      if (state == nullptr)
        continue;
      const at::Tensor& value = *part_fields(part, state).tensors[f];
      if (value.defined())
        own.narrow(0, parts.pieces[i].at, parts.pieces[i].length).copy_(value);
    }
    const at::Tensor all = at::empty({parts.layout.length()}, own.options());
    group.all_gather(all, own);
    for (size_t i = 0; i < entries.size(); ++i) {
      if ((entries[i].tensors >> f & 1U) == 0)
        continue;
      OptimizerParamState* const state = part_found(whole, parts.parameters[i]);
      *part_fields(whole, state).tensors[f] = parts.layout.place(all, i).clone();
    }
  }
}

void divide_optimizer_state(const OptimizerParts& parts, Optimizer& part, Optimizer& whole) {
  part_check_kinds(part, whole);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
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
    for (size_t f = 0; f < from.tensors.size(); ++f) {
      if (from.tensors[f]->defined())
        *to.tensors[f] =
            from.tensors[f]->reshape({-1}).narrow(0, piece.begin, piece.length).clone();
    }
    part.state()[key] = std::move(to.own);
  }
}

void copy_group_options(Optimizer& from, Optimizer& to) {
  part_check_kinds(from, to);
  auto& groups = from.param_groups();
  if (groups.size() != to.param_groups().size())
    return;
  for (size_t g = 0; g < groups.size(); ++g)
    to.param_groups()[g].set_options(groups[g].options().clone());
}

}  // namespace muster
