// Cuts a torch::nn::Sequential into stages of similar cost, and runs them on several devices of one
// process. Pipeline (pipeline.h) takes the pieces, one on each rank.
//
//   const auto costs = muster::average_costs(muster::measure_costs(model, sample),
//                                            ctx.process_group());
//   const auto cut = muster::balanced_cut(costs, 4);
//   std::cout << muster::to_text(cut, costs);
//   // 4 Sequentials that share the model's layers:
//   auto pieces = muster::cut_into_stages(model, cut);
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// The cost of one child of a Sequential.
struct LayerCost {
  std::string name;
  double seconds = 0;            // forward and backward of the sample; the fastest of several runs
  int64_t parameter_bytes = 0;   // gradients take as much again
  int64_t activation_bytes = 0;  // of its output for the sample
};

// Stage i consists of children begins[i] … begins[i + 1] - 1. begins[0] is 0.
struct StageCut {
  std::vector<size_t> begins;
  bool operator==(const StageCut&) const = default;
};

// Times each child alone, on the sample's device, in its type and in the model's mode. Restores
// gradients, and buffers that forwards write, afterwards. Use a sample of micro-batch size. Throws:
// invalid_argument for a model without children, and naming a child that does not return one
// tensor.
std::vector<LayerCost> measure_costs(torch::nn::Sequential model,
                                     const at::Tensor& sample,
                                     int repeats = 5);

// The mean over the ranks, so that all cut at the same places. Use all ranks of the job, including
// replicas. Collective: yes.
std::vector<LayerCost> average_costs(std::vector<LayerCost> costs, ProcessGroup group);

// Cuts into contiguous stages so that the slowest takes the least time; among equals it takes the
// cut whose largest stage has the fewest parameter bytes. `most_bytes`: limit for a stage's
// parameters; 0: none. Throws: invalid_argument for fewer layers than stages, and if no cut stays
// within most_bytes.
StageCut balanced_cut(const std::vector<LayerCost>& costs, size_t stages, int64_t most_bytes = 0);

// Cuts by hand: stages begin at layer 0 and at these. Throws: invalid_argument for begins that do
// not increase, or that are not layers.
StageCut cut_at(size_t layers, std::vector<size_t> later_begins);

// One line per stage, and the reason: the cost of the slowest stage, and that of an even division.
std::string to_text(const StageCut& cut, const std::vector<LayerCost>& costs);

// The stages; they share the model's children, under the same names. A layer, or a weight, that
// several of them have must be tied (Pipeline::tie) where they lie on several ranks: a step without
// is refused.
std::vector<torch::nn::Sequential> cut_into_stages(torch::nn::Sequential model,
                                                   const StageCut& cut);

// One model over several devices of this process. Stage i is on devices[i], and activations move
// between devices; forward and backward are the plain model's. Parameters keep their names. Only
// one device works at a time; Pipeline lets several work.
class StagesImpl : public torch::nn::Module {
 public:
  // Throws: invalid_argument unless there is one device per stage.
  StagesImpl(torch::nn::Sequential model, const StageCut& cut, std::vector<c10::Device> devices);
  at::Tensor forward(at::Tensor x);
  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  std::vector<torch::nn::Sequential> stages_;
  std::vector<c10::Device> devices_;
};
TORCH_MODULE(Stages);

}  // namespace muster
