// The parameters of an optimizer in lots that one kernel takes. For the optimizers of optim.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/optim/each_once.h"
#include "muster/optim/kernels.h"

namespace muster::optim {

// The parameters of a group that have a gradient.
Tensors with_gradients(const OptimizerParamGroup& group);

// Whether the rule holds for all parameters that have a gradient.
template <class Rule>
bool hold_for_all(const ParameterGroups& groups, const Rule& rule) {
  const auto holds = [&](const Tensor& parameter) {
    return !parameter.grad().defined() || rule(parameter);
  };
  return all_of(groups, [&](const auto& group) { return all_of(group.params(), holds); });
}

// Whether the kernels take the gradient: dense and real, of its parameter's type and device.
bool is_for_kernels(const Tensor& parameter);

// Whether all gradients are on one GPU.
bool are_on_one_gpu(const ParameterGroups& groups);

// Whether a tensor of the state has the parameter's type and device, or is not there yet.
bool is_like(const Tensor& state, const Tensor& parameter);

// The tensor laid out in memory as `model` is, which kernels expect of all tensors of a parameter;
// the tensor itself where it is so.
Tensor laid_out_as(const Tensor& model, const Tensor& tensor);

// What a kernel takes at once: tensors of one device and type, by their place in the lists.
struct Lot {
  Tensors parameters;
  Tensors gradients;
  TensorLists state;  // a list for each tensor of the state
  Tensors steps;
};

// Lots by device, type and, for SGD with dampening, whether the step is a parameter's first.
class Lots {
 public:
  // The lot that the parameter, and its gradient, is put into.
  Lot& add(const Tensor& parameter, bool is_first_step = false);
  auto begin() const { return lots_.begin(); }
  auto end() const { return lots_.end(); }

 private:
  std::map<std::tuple<c10::DeviceIndex, ScalarType, bool>, Lot> lots_;
};

// Counts of steps as kernels read them, one scalar a device and count. In a capture they are those
// of the graph's numbers.
class StepCounts {
 public:
  explicit StepCounts(const StepKind& kind) : left_out_(kind.left_out), graph_(kind.graph) {}
  const Tensor& of(const Tensor& parameter, int64_t step);

 private:
  const Tensor left_out_;
  const GraphNumbers* const graph_;
  std::map<std::pair<c10::DeviceIndex, int64_t>, Tensor> counts_;
};

// Calls `kernel` with the group's rate, as a number or as the tensor that a graph reads.
template <class Kernel>
void with_rate(const StepKind& kind, size_t group, double rate, const Kernel& kernel) {
  if (kind.graph != nullptr)
    kernel(kind.graph->rates.at(group));
  else
    kernel(kind.rounds_rates ? static_cast<double>(static_cast<float>(rate)) : rate);
}

// Refuses a capture in which a parameter takes its first step: its state would begin anew in every
// replay.
void expect_state_before(const StepKind& kind);

}  // namespace muster::optim
