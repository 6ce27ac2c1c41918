// The mean of the ranks' losses, which LBFGS needs: it calls the loss itself, and decides by it.
//
//   optimizer.step([&] {
//     optimizer.zero_grad();
//     const auto loss = loss_of(model(batch));
//     loss.backward();  // the gradients are the mean of the ranks'
//     return muster::mean_over_ranks(loss, ctx.process_group());
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/comm/process_group.h"

namespace muster {

// Returns the same bits on every rank, so that all ranks decide alike. Shapes: any; the same on all
// ranks. Collective: yes.
at::Tensor mean_over_ranks(const at::Tensor& loss, ProcessGroup& group);

}  // namespace muster
