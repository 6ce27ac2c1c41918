// Tensor parallelism: layers whose weights are divided over the ranks of a group, all of which compute on the
// same input.
//
//   torch::nn::Linear up(width, 4 * width), down(4 * width, width);       // alike on every rank: one seed
//   muster::ColumnParallelLinear mine = muster::column_parallel(up, tp);  // its outputs, divided
//   muster::RowParallelLinear back = muster::row_parallel(down, tp);      // its inputs, divided
//   y = back(torch::gelu(mine(x)));                                       // as down(gelu(up(x)))
//
// Outside of such a pair every rank holds the same values; between its two layers, parts. With `sequence_dim`
// the ranks hold parts of the tokens outside, along that dimension (sequence parallelism, arXiv:2205.05198):
// what is outside must then be sequence_parallel.h's.
// Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/group_functions.h"

namespace muster {

using WholeParameters = std::map<std::string, at::Tensor>;  // as the undivided layer names them

// What a layer with divided parameters can tell; for norms and checkpoints.
class DividedLayer {
 public:
  virtual ~DividedLayer() = default;
  // Those of which each rank holds a part of its own.
  virtual std::vector<at::Tensor> divided() const = 0;
  // The undivided layer's, on every rank. Collective: yes.
  virtual WholeParameters gather_parameters() const = 0;
  // Which elements of the undivided layer's parameters this rank has; named as there.
  virtual TensorPieces pieces() const = 0;
};

struct ColumnOptions {
  // The outputs are so many stacks, of which each rank has a part: 3 for an attention's joint q, k and v.
  int64_t stacks = 1;
  // Whether the first ranks may have an output more, as a head over a vocabulary.
  bool uneven = false;
  std::optional<int64_t> sequence_dim = {};  // along which the input is this rank's part
};

struct RowOptions {
  std::optional<int64_t> sequence_dim = {};  // along which the output is this rank's part
};

// A linear layer of which each rank computes some outputs. Weight [own outputs, inputs], bias [own outputs].
class ColumnParallelLinearImpl : public torch::nn::Module, public DividedLayer {
 public:
  // Collective. Throws: as column_parallel.
  ColumnParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group, ColumnOptions options = {});

  // Shapes: x [..., inputs], the same values on every rank, or its part of them; gives [..., own outputs].
  // Collective: in backward, with a sequence_dim here too.
  at::Tensor forward(const at::Tensor& x);

  std::vector<at::Tensor> divided() const override { return parameters(); }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight, bias;

 private:
  mutable ProcessGroup group_;
  ColumnOptions options_;
  int64_t outputs_;
};
TORCH_MODULE(ColumnParallelLinear);

// A linear layer of which each rank has some inputs. Weight [outputs, own inputs], bias [outputs] whole.
class RowParallelLinearImpl : public torch::nn::Module, public DividedLayer {
 public:
  // Collective. Throws: as row_parallel.
  RowParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group, RowOptions options = {});

  // Shapes: x [..., own inputs]; gives [..., outputs], the same on every rank, or its part of them.
  // Collective: yes.
  at::Tensor forward(const at::Tensor& x);

  std::vector<at::Tensor> divided() const override { return {weight}; }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight, bias;

 private:
  mutable ProcessGroup group_;
  RowOptions options_;
};
TORCH_MODULE(RowParallelLinear);

// This rank's slice of a layer that every rank has alike: the same seed gives the undivided model. Copies, so
// that the whole can go. Collective. Throws: invalid_argument on every rank for outputs (of each stack) or
// inputs that the ranks do not divide, and for layers that differ.
ColumnParallelLinear column_parallel(const torch::nn::Linear& whole, ProcessGroup group,
                                     ColumnOptions options = {});
RowParallelLinear row_parallel(const torch::nn::Linear& whole, ProcessGroup group, RowOptions options = {});

}  // namespace muster
