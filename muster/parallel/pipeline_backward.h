// A backward in two halves, for schedules that put weights' gradients off. Used by pipeline_stage.cc alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace muster {

// What is left to do for the weights after the input's gradient: from nodes of the graph, with the gradients
// that came to them, to the weights right below. A weight that is used in several places gets a whole
// backward of its own, from the output. Holds the graph.
struct WeightBackward {
  struct Part {
    std::vector<torch::autograd::Edge> from;
    std::vector<at::Tensor> gradients;  // of `from`
    std::vector<torch::autograd::Edge> weights;
  };
  std::vector<Part> parts = {};

  // Adds to the weights' grad().
  void run();
};

// The gradient of `input`, a leaf, where that of `output` is `gradient`. Undefined where the input takes
// none, and where the output does not depend on it: then the whole backward is left. `output` has a graph.
struct InputBackward {
  at::Tensor gradient;
  WeightBackward left;
};
InputBackward backward_of_input(const at::Tensor& output, const at::Tensor& gradient,
                                const at::Tensor& input);

}  // namespace muster
