// What differs between the optimizers of optim.h. For fused.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <optional>

namespace muster::optim {

// Takes a step, or leaves it out if `found` is 1. `left_out`: how many steps the device has left
// out that the state counts, on the device; undefined: none.
void take_step(torch::optim::Adam& optimizer,
               const at::Tensor& left_out,
               const std::optional<at::Tensor>& found);
void take_step(torch::optim::AdamW& optimizer,
               const at::Tensor& left_out,
               const std::optional<at::Tensor>& found);
void take_step(torch::optim::SGD& optimizer,
               const at::Tensor& left_out,
               const std::optional<at::Tensor>& found);

// A tensor of the parameter's state; undefined if there is none yet.
at::Tensor state_of(torch::optim::Adam& optimizer, const at::Tensor& parameter);
at::Tensor state_of(torch::optim::AdamW& optimizer, const at::Tensor& parameter);
at::Tensor state_of(torch::optim::SGD& optimizer, const at::Tensor& parameter);

// Takes a step from the count in a parameter's state.
void count_back(torch::optim::Adam& optimizer, void* parameter);
void count_back(torch::optim::AdamW& optimizer, void* parameter);
void count_back(torch::optim::SGD& optimizer, void* parameter);

// Whether the first step of a parameter leaves behind what a later one would not have.
inline bool needs_its_first_step(const torch::optim::Adam&) {
  return false;
}
inline bool needs_its_first_step(const torch::optim::AdamW&) {
  return false;
}
bool needs_its_first_step(torch::optim::SGD& optimizer);

}  // namespace muster::optim
