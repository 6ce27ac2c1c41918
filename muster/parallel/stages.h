// Cutting a torch::nn::Sequential into stages of about equal cost, and running them on several devices of one
// process. Pipeline (pipeline.h) takes the pieces, one on each rank.
//
//   const auto costs = muster::average_costs(muster::measure_costs(model, sample), ctx.process_group());
//   const auto cut = muster::balanced_cut(costs, 4);
//   std::cout << muster::to_text(cut, costs);
//   auto pieces = muster::cut_into_stages(model, cut);       // 4 Sequentials that share the model's layers
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// Of one child of a Sequential.
struct LayerCost {
  std::string name;
  double seconds = 0;            // forward and backward of the sample, the fastest of several
  int64_t parameter_bytes = 0;   // gradients take as much again
  int64_t activation_bytes = 0;  // of its output for the sample
};

// Children begins[i] … begins[i + 1] - 1 are stage i. begins[0] is 0.
struct StageCut {
  std::vector<size_t> begins;
  bool operator==(const StageCut&) const = default;
};

// Times each child alone, on the device and with the type of the sample and in the model's mode; gradients,
// and buffers that a forward writes, are as before afterwards. A sample of a micro-batch's size is right.
// Throws: invalid_argument for a model without children, and naming a child that does not give one tensor.
std::vector<LayerCost> measure_costs(torch::nn::Sequential model, const at::Tensor& sample, int repeats = 5);

// The ranks' mean: each measures other times, and would cut elsewhere. Over all ranks of the job, replicas
// too. Collective: yes.
std::vector<LayerCost> average_costs(std::vector<LayerCost> costs, ProcessGroup group);

// The cut into contiguous stages whose dearest takes the least time; of those that tie, the one whose largest
// holds the fewest parameter bytes. `most_bytes`: of parameters in a stage; 0: any. Throws: invalid_argument
// for fewer layers than stages, and where no cut keeps most_bytes.
StageCut balanced_cut(const std::vector<LayerCost>& costs, size_t stages, int64_t most_bytes = 0);

// By hand: stages begin at layer 0 and at these. Throws: invalid_argument for begins that do not rise, or are
// not layers.
StageCut cut_at(size_t layers, std::vector<size_t> later_begins);

// A line a stage, and why: what the dearest costs, and what an even division would.
std::string to_text(const StageCut& cut, const std::vector<LayerCost>& costs);

// The stages, which share the model's children under their names.
std::vector<torch::nn::Sequential> cut_into_stages(torch::nn::Sequential model, const StageCut& cut);

// One model over several devices of this process: stage i lies on devices[i], activations are moved between
// them, forward and backward are the plain model's. Parameters keep their names. One device works at a time;
// Pipeline lets several.
class StagesImpl : public torch::nn::Module {
 public:
  // Throws: invalid_argument for as many devices as there are no stages.
  StagesImpl(torch::nn::Sequential model, const StageCut& cut, std::vector<c10::Device> devices);
  at::Tensor forward(at::Tensor x);
  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  std::vector<torch::nn::Sequential> stages_;
  std::vector<c10::Device> devices_;
};
TORCH_MODULE(Stages);

}  // namespace muster
