// AdamW, Adam and SGD with one kernel for all parameters instead of about ten for each. They are
// torch::optim's classes, with the same options and the same state, so that checkpoints fit both
// ways.
//
//   muster::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
//
// Sums are rounded as in Python's `fused=True`, which differs from torch::optim in the last bits.
// Gradients that the kernels do not take (sparse or complex ones) have torch::optim's own step.
// Source: torch.optim.AdamW, Adam and SGD with fused=True.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "muster/optim/device_step.h"

namespace muster::optim {

// Steps that the device has left out and the state still counts.
struct LeftOut {
  at::Tensor steps = {};                       // how many, on the device
  std::deque<std::vector<void*>> recent = {};  // the parameters of the last steps
};

class AdamW : public torch::optim::AdamW, public DeviceStep {
 public:
  using torch::optim::AdamW::AdamW;
  // Returns what the closure returns, as torch::optim's does. Does not wait for a GPU.
  at::Tensor step(LossClosure closure = nullptr) override;
  bool can_leave_out() override;
  void step_unless(const at::Tensor& found) override;
  void take_back(int64_t steps) override;

 private:
  LeftOut left_out_;
};

class Adam : public torch::optim::Adam, public DeviceStep {
 public:
  using torch::optim::Adam::Adam;
  at::Tensor step(LossClosure closure = nullptr) override;
  bool can_leave_out() override;
  void step_unless(const at::Tensor& found) override;
  void take_back(int64_t steps) override;

 private:
  LeftOut left_out_;
};

class SGD : public torch::optim::SGD, public DeviceStep {
 public:
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override;
  bool can_leave_out() override;
  void step_unless(const at::Tensor& found) override;
  void take_back(int64_t steps) override;
};

}  // namespace muster::optim
