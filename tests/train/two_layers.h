// A model and batches of a few numbers in double, for the tests of TrainStep.
#pragma once

#include <torch/torch.h>

#include <mutex>
#include <vector>

#include "tests/support/seeding.h"
#include "tests/train/oracle.h"

namespace muster::testing {

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return fc2(torch::tanh(fc1(x))); }
  torch::nn::Linear fc1{4, 8};
  torch::nn::Linear fc2{8, 2};
};
TORCH_MODULE(TwoLayers);

struct OneBatch {
  double weight = 1;
  bool last = true;
};

inline TwoLayers seeded_layers(uint64_t seed = 1) {
  const std::lock_guard lock(seeding);
  torch::manual_seed(seed);
  return TwoLayers();
}

inline at::Tensor fixed_data(int64_t rows, uint64_t seed = 2) {
  return torch::randn({rows, 4}, at::detail::createCPUGenerator(seed), torch::kDouble);
}

inline std::vector<double> weights_of(const torch::nn::Module& module) {
  std::vector<double> all;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto numbers = numbers_of(parameter);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  return all;
}

}  // namespace muster::testing
