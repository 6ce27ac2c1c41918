// Tensor parallelism: layers whose weights are divided over the ranks of a group, all of which
// compute on the same input.
//
//   // Alike on every rank: one seed.
//   torch::nn::Linear up(width, 4 * width), down(4 * width, width);
//   muster::ColumnParallelLinear mine = muster::column_parallel(up, tp);  // its outputs, divided
//   muster::RowParallelLinear back = muster::row_parallel(down, tp);      // its inputs, divided
//   y = back(torch::gelu(mine(x)));                                       // as down(gelu(up(x)))
//
// Outside such a pair every rank has the same values; between its two layers, parts. With
// `sequence_dim` the ranks have parts of the tokens outside, along that dimension (sequence
// parallelism, arXiv:2205.05198); layers outside must then come from sequence_parallel.h. Source:
// Shoeybi et al., Megatron-LM, arXiv:1909.08053.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/tensors.h"
#include "muster/checkpoint/tensor_pieces.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/tensor/group_functions.h"
#include "muster/parallel/tensor/same_input.h"

namespace muster {

using WholeParameters = std::map<std::string, at::Tensor>;  // by the undivided layer's names

// A layer with divided parameters, and what it reports for norms and checkpoints.
class DividedLayer : public torch::nn::Module {
 public:
  // The parameters of which each rank has its own part.
  virtual Tensors divided() const = 0;
  // The undivided layer's parameters, on every rank. Collective: yes.
  virtual WholeParameters gather_parameters() const = 0;
  // The elements of the undivided layer's parameters that this rank has, by its names.
  virtual TensorPieces pieces() const = 0;
  // torch::save and torch::load, which refuses another rank's part. Load on all ranks of the group
  // or on none: the next forward compares.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  // `call`: the function that makes such a layer.
  DividedLayer(const char* call, ProcessGroup group) : call_(call), group_(std::move(group)) {}

  // In forward. The ranks meet where this one has loaded. Collective: then. Throws:
  // invalid_argument where another has not; failed_precondition if LBFGS calls one of the first
  // forwards in which the layer is trained.
  void begin_forward();

  // torch::load gives a parameter the shape that the file has. Throws: invalid_argument for another
  // length along `dim` than that of this rank's part.
  void require_part(const char* name, const at::Tensor& mine, int64_t dim, int64_t length) const;

  const char* call_;
  mutable ProcessGroup group_;

 private:
  void meet_after_load();

  bool has_loaded_ = false;       // since the last forward
  int64_t trained_forwards_ = 0;  // of which the caller was looked for
};

struct ColumnOptions {
  // The outputs form this many stacks, and each rank has a part of each: 3 for an attention's joint
  // q, k and v.
  int64_t stacks = 1;
  // Whether the first ranks may have one output more, as for a head over a vocabulary.
  bool uneven = false;
  std::optional<int64_t> sequence_dim = {};  // along which the input is this rank's part
};

struct RowOptions {
  std::optional<int64_t> sequence_dim = {};  // along which the output is this rank's part
};

// A linear layer whose outputs are divided. Weight [own outputs, inputs], bias [own outputs].
class ColumnParallelLinearImpl : public DividedLayer {
 public:
  // Collective: yes. Throws: as column_parallel.
  ColumnParallelLinearImpl(const torch::nn::Linear& whole,
                           ProcessGroup group,
                           ColumnOptions options = {});

  // Shapes: x [..., inputs], the same values on every rank, or this rank's part; returns [..., own
  // outputs]. Collective: in backward, and in the first forwards; with a
  // sequence_dim in all. Throws: invalid_argument, on every rank, for other values on one rank than
  // on another, on CPUs in these first forwards; as all calls below, for parameters that are not
  // this rank's part, as after torch::load of an undivided layer.
  at::Tensor forward(const at::Tensor& x);

  Tensors divided() const override { return parameters(); }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight, bias;

 private:
  void require_own_parts() const;

  ColumnOptions options_;
  int64_t outputs_;
  SameInput same_input_;
};
TORCH_MODULE(ColumnParallelLinear);

// A linear layer whose inputs are divided. Weight [outputs, own inputs], whole bias [outputs].
class RowParallelLinearImpl : public DividedLayer {
 public:
  // Collective: yes. Throws: as row_parallel.
  RowParallelLinearImpl(const torch::nn::Linear& whole,
                        ProcessGroup group,
                        RowOptions options = {});

  // Shapes: x [..., own inputs]; returns [..., outputs], the same on every rank, or this rank's
  // part. Collective: yes. Throws: as ColumnParallelLinearImpl::forward.
  at::Tensor forward(const at::Tensor& x);

  Tensors divided() const override { return {weight}; }
  WholeParameters gather_parameters() const override;
  TensorPieces pieces() const override;

  at::Tensor weight, bias;

 private:
  void require_own_part() const;

  RowOptions options_;
  int64_t inputs_;
};
TORCH_MODULE(RowParallelLinear);

// Copies this rank's slice of a layer that is equal on every rank (by the same seed), so that the
// whole layer can be freed. Collective: yes. Throws: invalid_argument, on every rank, for outputs
// (of each stack) or inputs that are not a multiple of the number of ranks, and for layers that
// differ.
ColumnParallelLinear column_parallel(const torch::nn::Linear& whole,
                                     ProcessGroup group,
                                     ColumnOptions options = {});
RowParallelLinear row_parallel(const torch::nn::Linear& whole,
                               ProcessGroup group,
                               RowOptions options = {});

}  // namespace muster
