// A running stage of a pipeline: its forwards and backwards, and what it keeps between them. Knows
// nothing of ranks and messages. Used only by pipeline.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/parallel/pipeline/backward.h"

namespace muster {

// The states of the random generators that a forward may use: the CPU's, and the device's.
struct RandomStates {
  static RandomStates now(Device device);
  void restore(Device device) const;
  Tensor on_cpu, on_device;
};

class StageRunner {
 public:
  using Compute = std::function<Tensor(const Tensor& input, int micro_batch)>;

  StageRunner(Compute compute, Device device) : compute_(std::move(compute)), device_(device) {}

  // With `recompute` it keeps only the input, and recomputes the output before its backward.
  Tensor forward(int micro_batch, const Tensor& input, bool takes_gradient, bool recompute);

  // Returns the gradient of the input, undefined if the input needs none; adds weight gradients to
  // grad(). Does nothing for a stage that trains nothing and whose input needs no gradient. Throws:
  // invalid_argument if the input needs a gradient but the output depends neither on it nor on a
  // weight.
  Tensor backward(int micro_batch, const Tensor& gradient);

  // The same in two parts.
  Tensor input_backward(int micro_batch, const Tensor& gradient);
  void weight_backward(int micro_batch);

  // Adds the leaves of each backward to `leaves`, but for its input; nullptr: to nothing.
  void note_leaves(Tensors* leaves) { leaves_ = leaves; }

  void forget() { held_.clear(); }

 private:
  struct Held {
    Tensor input, output;
    bool recompute = false;
    RandomStates random = {};
    WeightBackward left = {};
  };
  void compute_again(Held& held, int micro_batch);
  void look_at(const Held& held);

  Compute compute_;
  Device device_;
  std::map<int, Held> held_;
  Tensors* leaves_ = nullptr;
};

}  // namespace muster
