// Batch normalisation over the samples of all ranks: mean and variance are those of the joined
// batch, even if ranks have different numbers of samples, or none.
//
//   Net net;  // with torch::nn::BatchNorm2d members
//   muster::convert_sync_batch_norm(*net, ctx.process_group());
//   muster::DistributedDataParallel model(net, ctx.process_group());
//
// Formula: an all_gather of 2·C + 1 numbers per rank in forward, an all_reduce of 2·C in backward.
// Source: torch.nn.SyncBatchNorm, which supports only GPUs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>
#include <utility>

#include "muster/comm/process_group.h"

namespace muster {

struct SyncBatchNormTensors {
  at::Tensor weight = {}, bias = {};               // undefined: none
  at::Tensor running_mean = {}, running_var = {};  // updated in place; undefined: none
};

// Normalises with the statistics of all ranks.
// Shapes: [N, C, …] → the same; N may differ between ranks, and be 0.
// Collective: yes, and so is the backward.
// Throws: invalid_argument for fewer than two dimensions, and for fewer than two values of a
// channel on all ranks together; failed_precondition for a second derivative, and inside join()
// while ranks shadow.
at::Tensor sync_batch_norm(const at::Tensor& input,
                           const SyncBatchNormTensors& tensors,
                           double momentum,
                           double eps,
                           const ProcessGroup& group);

// Replaces BatchNorm1d, 2d and 3d, with their options, names and checkpoints. Forward and backward
// are collective in training mode; in eval mode it is a plain BatchNorm.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<2, SyncBatchNormImpl> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group)
      : BatchNormImplBase(options), group_(std::move(group)) {}

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& /*input*/) override {}  // sync_batch_norm checks

 private:
  ProcessGroup group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every BatchNorm1d, 2d and 3d in `model`, at any depth, use the statistics of all ranks.
// Returns how many it found. LibTorch cannot replace a typed member, so the modules stay, with
// their names and checkpoints. Instead, the operator aten::batch_norm, which they call, now checks
// whose tensors it gets. Copies (clone()) are not converted. Not converted either: a user's class
// that calls the operator itself (call sync_batch_norm there) and scripted modules. A BatchNorm1d
// with a single value of a channel on its rank still refuses it before the operator is called;
// SyncBatchNorm accepts it. In a group of one rank nothing changes. Throws: invalid_argument, with
// the name, for a module with neither weight nor running statistics to identify it.
int64_t convert_sync_batch_norm(torch::nn::Module& model, const ProcessGroup& group);
// Whether `tensor` belongs to a converted module in training mode, over more than one rank.
bool is_of_converted_norm(const at::Tensor& tensor);
[[noreturn]] void refuse_statistics_inside_of_join(int rank);

}  // namespace muster
