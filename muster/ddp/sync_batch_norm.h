// Batch normalisation over the samples of all ranks: mean and variance are those of the joined batch, also
// where ranks have different numbers of samples, or none.
//
//   Net net;  // with torch::nn::BatchNorm2d members
//   muster::convert_sync_batch_norm(*net, ctx.process_group());
//   muster::DistributedDataParallel model(net, ctx.process_group());
//
// Formula: of 2·C + 1 numbers a rank in forward an all_gather, of 2·C in backward an all_reduce. Source:
// torch.nn.SyncBatchNorm, which has GPUs alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "muster/comm/process_group.h"

namespace muster {

struct SyncBatchNormTensors {
  at::Tensor weight = {}, bias = {};               // undefined: none
  at::Tensor running_mean = {}, running_var = {};  // are changed; undefined: none
};

// Normalises with the statistics of all ranks. Shapes: [N, C, …] → the same; N may differ, and be 0.
// Collective: and so is the backward. Throws: invalid_argument for fewer than two dimensions, and for less
// than two values of a channel on all ranks together; failed_precondition for a second derivative, and inside
// of join() where ranks shadow.
at::Tensor sync_batch_norm(const at::Tensor& input, const SyncBatchNormTensors& tensors, double momentum,
                           double eps, const ProcessGroup& group);

// A module in place of BatchNorm1d, 2d and 3d, with their options, names and checkpoints. In training mode
// forward and backward are collective; in eval mode it is BatchNorm.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group)
      : BatchNormImplBase(options), group_(std::move(group)) {}

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& /*input*/) override {}  // sync_batch_norm looks

 private:
  ProcessGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every BatchNorm1d, 2d and 3d in `model`, wherever it is a member, one of all ranks. LibTorch cannot
// put another module in a typed member's place, so the modules stay what they are, with their names and
// checkpoints: from now on LibTorch's operator aten::batch_norm, which they call, looks whose tensors it
// gets. Copies (clone()) are not converted. Not seen: a class of the user's that calls the operator itself
// (there, call sync_batch_norm) and scripted modules. A BatchNorm1d whose rank has a single value of a
// channel still refuses it, before it comes to the operator; SyncBatchNorm does not. Where only the group has
// one rank, nothing changes. Returns how many it has found. Throws: invalid_argument, with its name, for one
// that has neither weight nor running statistics to be known by.
int64_t convert_sync_batch_norm(torch::nn::Module& model, const ProcessGroup& group);
// Whether `tensor` is known as one of a converted module in training mode, over more than one rank.
bool is_of_converted_norm(const at::Tensor& tensor);
[[noreturn]] void refuse_statistics_inside_of_join(int rank);

}  // namespace muster
