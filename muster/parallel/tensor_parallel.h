// Tensor parallelism: layers whose weights are divided over the ranks of a group, all of which compute on the
// same input.
//
//   torch::nn::Linear up(width, 4 * width), down(4 * width, width);       // alike on every rank: one seed
//   muster::ColumnParallelLinear mine = muster::column_parallel(up, tp);  // its outputs, divided
//   muster::RowParallelLinear back = muster::row_parallel(down, tp);      // its inputs, divided
//   y = back(torch::gelu(mine(x)));                                       // as down(gelu(up(x)))
//
// Below are the four functions of which such layers are made, then the layers. Each function's backward is
// another one's forward. Outside of a divided stretch every rank holds the same values, and gradients are
// those of the loss that every rank computes alike.
// Source: Shoeybi et al., Megatron-LM, arXiv:1909.08053.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <map>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster {

// Where a divided stretch begins: x itself; backward sums the ranks' gradients. Collective: in backward.
at::Tensor copy_to_group(const at::Tensor& x, ProcessGroup group);
// Where it ends in parts of a sum: the sum over the ranks; backward gives the gradient itself. Collective.
at::Tensor reduce_from_group(const at::Tensor& x, ProcessGroup group);
// The ranks' parts joined along `dim`; backward gives this rank's part. Collective. Shapes: the same on every
// rank.
at::Tensor gather_from_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);
// This rank's part along `dim`; backward joins the gradients' parts. Collective: in backward. Throws:
// invalid_argument for a size that the ranks do not divide.
at::Tensor scatter_to_group(const at::Tensor& x, ProcessGroup group, int64_t dim = -1);

// A stretch of rows. `division` gives each rank one; where the ranks do not divide `total`, the first ones
// have one more.
struct Part {
  int64_t begin = 0;
  int64_t length = 0;
};
Part division(int64_t total, const ProcessGroup& group);

using WholeParameters = std::map<std::string, at::Tensor>;  // as the undivided layer names them

// What a layer with divided parameters can tell; for norms and checkpoints.
class DividedLayer {
 public:
  virtual ~DividedLayer() = default;
  // Those of which each rank holds a part of its own.
  virtual std::vector<at::Tensor> divided() const = 0;
  // The undivided layer's, on every rank. Collective: yes.
  virtual WholeParameters gather_parameters() const = 0;
};

struct ColumnOptions {
  // The outputs are so many stacks, of which each rank has a part: 3 for an attention's joint q, k and v.
  int64_t stacks = 1;
  // Whether the first ranks may have an output more, as a head over a vocabulary.
  bool uneven = false;
};

// A linear layer of which each rank computes some outputs. Weight [own outputs, inputs], bias [own outputs].
class ColumnParallelLinearImpl : public torch::nn::Module, public DividedLayer {
 public:
  // Collective. Throws: as column_parallel.
  ColumnParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group, ColumnOptions options = {});

  // Shapes: x [..., inputs], the same values on every rank; gives [..., own outputs]. Collective: in
  // backward.
  at::Tensor forward(const at::Tensor& x) { return local(copy_to_group(x, group_)); }
  // The product alone: for an input whose gradients another function sums.
  at::Tensor local(const at::Tensor& x) const;

  std::vector<at::Tensor> divided() const override { return parameters(); }
  WholeParameters gather_parameters() const override;

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
  RowParallelLinearImpl(const torch::nn::Linear& whole, ProcessGroup group);

  // Shapes: x [..., own inputs]; gives [..., outputs], the same on every rank. Collective: yes.
  at::Tensor forward(const at::Tensor& x);
  // This rank's summand, without the bias: for what sums, and then adds the bias, another way.
  at::Tensor partial(const at::Tensor& x) const;

  std::vector<at::Tensor> divided() const override { return {weight}; }
  WholeParameters gather_parameters() const override;

  at::Tensor weight, bias;

 private:
  mutable ProcessGroup group_;
};
TORCH_MODULE(RowParallelLinear);

// This rank's slice of a layer that every rank has alike: the same seed gives the undivided model. Copies, so
// that the whole can go. Collective. Throws: invalid_argument on every rank for outputs (of each stack) or
// inputs that the ranks do not divide, and for layers that differ.
ColumnParallelLinear column_parallel(const torch::nn::Linear& whole, ProcessGroup group,
                                     ColumnOptions options = {});
RowParallelLinear row_parallel(const torch::nn::Linear& whole, ProcessGroup group);

}  // namespace muster
