// What differs between the optimizers of optim.h. For fused.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <optional>

#include "muster/base/lists.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/optim/graph_numbers.h"

namespace muster::optim {

// How a step is taken.
struct StepKind {
  Tensor left_out{};  // steps that the device has left out and the state counts; may be none
  std::optional<Tensor> found{};        // 1: the step is left out
  bool rounds_rates = false;            // to float32
  const GraphNumbers* graph = nullptr;  // of a capture: the state counts nothing
};

void take_step(torch::optim::Adam& optimizer, const StepKind& kind);
void take_step(torch::optim::AdamW& optimizer, const StepKind& kind);
void take_step(torch::optim::SGD& optimizer, const StepKind& kind);

// The tensors of the parameter's state; none if there is none yet.
Tensors state_of(torch::optim::Adam& optimizer, void* parameter);
Tensors state_of(torch::optim::AdamW& optimizer, void* parameter);
Tensors state_of(torch::optim::SGD& optimizer, void* parameter);

// The steps that a parameter's state counts; nothing if it counts none.
std::optional<int64_t> count_of(torch::optim::Adam& optimizer, void* parameter);
std::optional<int64_t> count_of(torch::optim::AdamW& optimizer, void* parameter);
std::optional<int64_t> count_of(torch::optim::SGD& optimizer, void* parameter);

// Adds to the count of steps in a parameter's state.
void count_steps(torch::optim::Adam& optimizer, void* parameter, int64_t steps);
void count_steps(torch::optim::AdamW& optimizer, void* parameter, int64_t steps);
void count_steps(torch::optim::SGD& optimizer, void* parameter, int64_t steps);

// The options of a group but for its rate.
Doubles options_of(const torch::optim::Adam& optimizer, const OptimizerParamGroup& group);
Doubles options_of(const torch::optim::AdamW& optimizer, const OptimizerParamGroup& group);
Doubles options_of(const torch::optim::SGD& optimizer, const OptimizerParamGroup& group);

// Whether the first step of a parameter leaves behind what a later one would not have.
inline bool needs_its_first_step(const torch::optim::Adam&) {
  return false;
}
inline bool needs_its_first_step(const torch::optim::AdamW&) {
  return false;
}
bool needs_its_first_step(torch::optim::SGD& optimizer);

}  // namespace muster::optim
