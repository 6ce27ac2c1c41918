// AdamW, Adam and SGD with one kernel for all parameters instead of about ten for each. They are
// torch::optim's classes, with the same options and the same state, so that checkpoints fit both
// ways.
//
//   muster::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
//
// Sums are rounded as in Python's `fused=True`, which differs from torch::optim in the last bits.
// Gradients that the kernels do not take (sparse or complex ones) have torch::optim's own step.
// A parameter that a list names twice is in it once; in two groups it is an error,
// invalid_argument, of the constructor and of add_param_group. What changes param_groups() itself,
// or calls the base's add_param_group, is not seen.
// Source: torch.optim.AdamW, Adam and SGD with fused=True.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "muster/base/tensors.h"
#include "muster/optim/device_step.h"
#include "muster/optim/each_once.h"
#include "muster/optim/graph_numbers.h"

namespace muster::optim {

// Steps that the device has left out and the state still counts.
struct LeftOut {
  at::Tensor steps{};                       // how many, on the device
  std::deque<std::vector<void*>> recent{};  // the parameters of the last steps
};

// One of torch::optim's classes, with a step in one kernel.
template <class Torch>
class Fused : public Torch, public DeviceStep {
 public:
  using Torch::Torch;

  // Instead of torch::optim's.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  // Returns what the closure returns, as torch::optim's does. Does not wait for a GPU.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;
  bool can_leave_out() override;
  void step_unless(const at::Tensor& found) override;
  void take_back(int64_t steps) override;
  void round_rates() override { rounds_rates_ = true; }
  std::shared_ptr<GraphNumbers> numbers_for_graph() override;
  void capture(GraphNumbers& numbers, const std::optional<at::Tensor>& found) override;
  void before_replay(GraphNumbers& numbers) override;
  void describe(std::vector<uint64_t>& into) override;
  Tensors state_tensors() override;

 private:
  void note_step(std::vector<void*> parameters);

  EachOnce each_once_{this->param_groups()};
  LeftOut left_out_;
  bool rounds_rates_ = false;
};

extern template class Fused<torch::optim::AdamW>;
extern template class Fused<torch::optim::Adam>;
extern template class Fused<torch::optim::SGD>;

using AdamW = Fused<torch::optim::AdamW>;
using Adam = Fused<torch::optim::Adam>;
using SGD = Fused<torch::optim::SGD>;

}  // namespace muster::optim
