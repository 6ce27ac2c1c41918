// The parameters of a model with some layers divided over a group: which are divided, the norm of
// their gradients, and the undivided model's parameters.
//
//   const muster::ParallelParameters parameters = muster::parallel_parameters(*model);
//   const auto norm = muster::parallel_grad_norm(parameters.divided, parameters.replicated, tp);
//   // train/clip.h: alike on every rank
//   muster::clip_grads_with_norm(model->parameters(), 1.0, norm);
#pragma once

#include <torch/nn/module.h>

#include "muster/base/tensors.h"
#include "muster/comm/process_group.h"
#include "muster/parallel/tensor/tensor_parallel.h"

namespace muster {

// Each parameter once, in the model's order.
struct ParallelParameters {
  Tensors divided;     // each rank has its own part
  Tensors replicated;  // the same on every rank
};
ParallelParameters parallel_parameters(const torch::nn::Module& model);

// The norm of all gradients as one vector, as in the undivided model: all ranks' parts count, and
// replicated gradients count once. A scalar on the group's device, the same on every rank;
// `norm_type` may be infinity. Collective: yes. Throws: invalid_argument for a norm_type that is
// not positive; failed_precondition, on every rank, for replicated gradients that are not alike, on
// CPUs and with a finite norm_type.
at::Tensor parallel_grad_norm(const Tensors& divided,
                              const Tensors& replicated,
                              ProcessGroup group,
                              double norm_type = 2);

// This rank's parameters as pieces of the undivided model's, and its buffers: for Checkpoints::add.
TensorPieces parallel_pieces(const torch::nn::Module& model);

// The undivided model's parameters, by its names, on every rank. Collective: yes.
WholeParameters gather_parameters(const torch::nn::Module& model);

}  // namespace muster
