// A backward in two parts, for schedules that delay weight gradients. Used only by stage.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "muster/base/tensors.h"

namespace muster {

// Adds the leaves that the backward of `output` gives gradients to, but for `input`.
void add_leaves(const Tensor& output, const Tensor& input, Tensors& leaves);

// What remains for the weights after the input's gradient: the paths from nodes of the graph, with
// the gradients that reached them, to the weights directly below. A weight used in several places
// gets its own whole backward from the output. Keeps the graph alive.
struct WeightBackward {
  struct Part {
    torch::autograd::edge_list from;
    Tensors gradients;  // of `from`
    torch::autograd::edge_list weights;
  };
  std::vector<Part> parts = {};

  // Adds to the weights' grad().
  void run();
};

// The gradient of `input`, a leaf, for the gradient `gradient` of `output`. Undefined if the input
// needs none, or if the output does not depend on it: then the whole backward remains. `output`
// must have a graph.
struct InputBackward {
  Tensor gradient;
  WeightBackward left;
};
InputBackward backward_of_input(const Tensor& output, const Tensor& gradient, const Tensor& input);

}  // namespace muster
