// One stage of a pipeline at work: its forwards and backwards, and what it holds between them. Knows nothing
// of ranks and messages. Used by pipeline.cc alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <map>

#include "muster/parallel/pipeline_backward.h"

namespace muster {

// States of the random generators that a forward may draw from: the CPU's, and the device's.
struct RandomStates {
  static RandomStates now(c10::Device device);
  void restore(c10::Device device) const;
  at::Tensor on_cpu, on_device;
};

class StageRunner {
 public:
  using Compute = std::function<at::Tensor(const at::Tensor& input, int micro_batch)>;

  StageRunner(Compute compute, c10::Device device) : compute_(std::move(compute)), device_(device) {}

  // With `recompute` the input alone is held, and the output is computed again before its backward.
  at::Tensor forward(int micro_batch, const at::Tensor& input, bool takes_gradient, bool recompute);

  // The gradient of the input, undefined where it takes none; weights' are added to grad(). A stage that
  // trains nothing, and whose input takes no gradient, has nothing to do. Throws: invalid_argument where the
  // input takes one, and the output depends on no weight and not on it.
  at::Tensor backward(int micro_batch, const at::Tensor& gradient);

  // The same in two halves.
  at::Tensor input_backward(int micro_batch, const at::Tensor& gradient);
  void weight_backward(int micro_batch);

  void forget() { held_.clear(); }

 private:
  struct Held {
    at::Tensor input, output;
    bool recompute = false;
    RandomStates random = {};
    WeightBackward left = {};
  };
  void compute_again(Held& held, int micro_batch);

  Compute compute_;
  c10::Device device_;
  std::map<int, Held> held_;
};

}  // namespace muster
