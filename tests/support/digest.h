// All bits of a training's state in one text, for programs that print it: a sum would miss what
// cancels out.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/checkpoint/files/sha256.h"

namespace muster::testing {

inline std::string digest_of(const std::vector<at::Tensor>& tensors) {
  Sha256 sum;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor bytes = tensor.detach().cpu().contiguous();
    const std::string what = cat(bytes.toString(), " [", join(bytes.sizes(), ", "), "]");
    sum.update(what.data(), what.size());
    sum.update(bytes.const_data_ptr(), bytes.nbytes());
  }
  return sum.hex();
}

// The moments that an AdamW has of its parameters, in their order.
inline std::vector<at::Tensor> moments_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> moments;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end())
        continue;
      auto& state = dynamic_cast<torch::optim::AdamWParamState&>(*found->second);
      moments.push_back(state.exp_avg());
      moments.push_back(state.exp_avg_sq());
      moments.push_back(torch::tensor(state.step()));
    }
  }
  return moments;
}

inline std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors,
                                      const std::vector<at::Tensor>& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
  return tensors;
}

}  // namespace muster::testing
