// A data set whose samples are their own numbers, each with noise that its random numbers give, for
// tests of loaders.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "muster/data/loader.h"

namespace muster::test {

struct Noted {
  torch::Tensor index, noise;
};

struct Numbers : Dataset<Noted> {
  explicit Numbers(int64_t size, std::set<int64_t> bad = {}) : size_(size), bad_(std::move(bad)) {}
  int64_t size() const override { return size_; }
  Noted get(int64_t index, Generator& rng) const override {
    if (bad_.contains(index))
      throw std::runtime_error("cut short");
    return {torch::tensor(index), torch::tensor(rng.normal())};
  }
  int64_t size_;
  std::set<int64_t> bad_;
};

inline std::shared_ptr<const Numbers> numbers(int64_t size, std::set<int64_t> bad = {}) {
  return std::make_shared<const Numbers>(size, std::move(bad));
}

inline std::shared_ptr<DistributedSampler> sampler_of(int64_t size,
                                                      const SamplerOptions& options = {}) {
  return std::make_shared<DistributedSampler>(size, options);
}

// Index and noise of every sample, in their order.
std::vector<std::pair<int64_t, double>> run_through(auto&& batches) {
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<int64_t, double>> seen;
  for (const auto& batch : batches)
    for (int64_t i = 0; i < batch.size(); ++i)
      seen.emplace_back(batch.index[i].template item<int64_t>(),
                        batch.noise[i].template item<double>());
  return seen;
}

}  // namespace muster::test
