// Small trainings for the tests of what does not wait: a model, and what worker `w` learns in step
// `t`.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "examples/02_gpt/gpt.h"

namespace muster::testing {

// A model with its data: everything follows from seeds.
struct LocalTraining {
  std::shared_ptr<torch::nn::Module> net;
  std::function<at::Tensor(int worker, int64_t step)> loss;
};

inline LocalTraining local_mlp() {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3));
  const auto loss = [net](int worker, int64_t step) mutable {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + worker);
    const at::Tensor inputs = torch::randn({8, 6}, generator);
    const at::Tensor targets = inputs.narrow(1, 0, 3).argmax(1);
    return torch::cross_entropy_loss(net->forward(inputs), targets);
  };
  return {.net = net.ptr(), .loss = loss};
}

inline LocalTraining local_gpt() {
  torch::manual_seed(2);
  Gpt net(GptOptions{.vocabulary = 11, .layers = 2, .heads = 2, .width = 16, .context = 8});
  const auto loss = [net](int worker, int64_t step) mutable {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + worker);
    const at::Tensor first = torch::randint(11, {4, 1}, generator, torch::kLong);
    const at::Tensor tokens = (first + torch::arange(9) * 3).remainder(11);
    return next_token_loss(net->forward(tokens.narrow(1, 0, 8)), tokens.narrow(1, 1, 8));
  };
  return {.net = net.ptr(), .loss = loss};
}

inline std::vector<LocalTraining> local_copies(LocalTraining (*make)(), int count) {
  std::vector<LocalTraining> copies;
  for (int i = 0; i < count; ++i)
    copies.push_back(make());
  return copies;
}

// The mean of the trainings' parameters, in the order of the ranks, into each of them.
inline void average_copies(const std::vector<LocalTraining*>& trainings) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < trainings[0]->net->parameters().size(); ++i) {
    at::Tensor sum = trainings[0]->net->parameters()[i].clone();
    for (size_t rank = 1; rank < trainings.size(); ++rank)
      sum += trainings[rank]->net->parameters()[i];
    sum /= static_cast<int64_t>(trainings.size());
    for (LocalTraining* training : trainings)
      training->net->parameters()[i].copy_(sum);
  }
}

inline double largest_difference(const std::vector<at::Tensor>& a,
                                 const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

}  // namespace muster::testing
