// Models and batches of a few numbers for the tests of DistributedDataParallel.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "muster/comm/process_group.h"

namespace muster::testing {

inline torch::nn::Sequential two_layers() {
  torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters())
    parameter.fill_(0.25);
  return net;
}

inline at::Tensor batch_of(int rank, int step = 0) {
  return torch::full({2, 3}, static_cast<float>(1 + rank + 10 * step));
}

inline at::Tensor square_loss(const at::Tensor& output) {
  return output.square().mean();
}

inline void drop_gradients(const torch::nn::Module& net) {
  for (auto& parameter : net.parameters())
    parameter.mutable_grad().reset();
}

// Whether all ranks have the same gradients, and these are there.
inline bool same_everywhere(ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  std::string mine;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined())
      return false;
    const auto gradient = parameter.grad().contiguous();
    mine.append(static_cast<const char*>(gradient.const_data_ptr()), gradient.nbytes());
  }
  const auto all = group.all_gather_bytes(mine);
  return std::all_of(
      all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; });
}

// The mean over the ranks of what `loss` gives for `parameters`, past DistributedDataParallel.
inline std::vector<at::Tensor> mean_gradients(ProcessGroup& group,
                                              const at::Tensor& loss,
                                              const std::vector<at::Tensor>& parameters) {
  auto gradients = torch::autograd::grad({loss}, parameters);
  for (auto& gradient : gradients) {
    gradient = gradient.contiguous();
    group.all_reduce(gradient);
    gradient /= group.size();
  }
  return gradients;
}

inline void expect_gradients(const std::vector<at::Tensor>& parameters,
                             const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    EXPECT_TRUE(gradient.defined() && gradient.allclose(expected[i], 1e-5, 1e-6))
        << "parameter " << i;
  }
}

}  // namespace muster::testing
