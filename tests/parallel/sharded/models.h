// Models, data and a training loop that the tests of sharded state share.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "examples/02_gpt/gpt.h"
#include "muster/comm/process_group.h"

namespace muster::testing {

// The generator is the process's, and so all ranks'.
inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Sizes that no number of ranks divides.
inline torch::nn::Sequential sharded_mlp() {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(13, 37),
                               torch::nn::Tanh(),
                               torch::nn::Linear(37, 29),
                               torch::nn::Tanh(),
                               torch::nn::Linear(29, 7));
}

inline Gpt sharded_gpt() {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(6);
  return Gpt(GptOptions{.vocabulary = 23, .layers = 2, .heads = 2, .width = 12, .context = 8});
}

// A step's joined batch, divided over ranks. Rows divide by 1, 2, 3 and 4.
struct ShardedBatch {
  torch::Tensor x, y;
  ShardedBatch of(int rank, int ranks) const {
    return {x.chunk(ranks, 0)[static_cast<size_t>(rank)],
            y.chunk(ranks, 0)[static_cast<size_t>(rank)]};
  }
};

inline ShardedBatch mlp_batch(int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 + step));
  const auto x = torch::randn({24, 13}, generator);
  return {x, torch::randint(7, {24}, generator, torch::kLong)};
}

inline ShardedBatch gpt_batch(int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(200 + step));
  const auto tokens = torch::randint(23, {12, 9}, generator, torch::kLong);
  return {tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8)};
}

inline torch::Tensor sharded_loss(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::cross_entropy_loss(output.flatten(0, -2), target.flatten());
}

// The mean of all ranks' losses.
inline float mean_loss(const torch::Tensor& loss, ProcessGroup& group) {
  torch::Tensor mean = loss.detach().clone();
  group.all_reduce(mean);
  return mean.item<float>() / static_cast<float>(group.size());
}

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = a.size() == b.size() ? 0.0F : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest))
      largest = difference;
  }
  return largest;
}

// What a call throws says; "nothing" where it returns.
inline std::string failure_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

inline float farthest_apart(const std::vector<torch::Tensor>& a,
                            const std::vector<torch::Tensor>& b) {
  float farthest = a.size() == b.size() ? 0.0F : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float difference = (a[i].detach() - b[i].detach()).abs().max().item<float>();
    if (!(difference <= farthest))
      farthest = difference;
  }
  return farthest;
}

inline std::vector<torch::Tensor> values_of(const torch::nn::Module& model) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : model.parameters())
    values.push_back(parameter.detach().clone());
  return values;
}

}  // namespace muster::testing
