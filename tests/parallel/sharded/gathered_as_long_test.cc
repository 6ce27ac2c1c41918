// A module's parameters stay gathered as long as a backward reads them, and gradients add up in the
// type in which they are reduced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using torch::optim::SGD;

// Its weight's gradient is there before the gradient of its input has read the detached weight.
struct ReadsDetachedImpl : torch::nn::Module {
  ReadsDetachedImpl() {
    weight = register_parameter("weight", torch::linspace(-1, 1, 64).view({8, 8}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto detached = x.matmul(weight.detach());  // made first, so its backward comes last
    return detached + x.matmul(weight);
  }
  torch::Tensor weight;
};
TORCH_MODULE(ReadsDetached);

struct DetachedPair {
  DetachedPair() {
    const torch::NoGradGuard no_grad;
    first->weight.copy_(torch::linspace(-0.5, 0.5, 64).view({8, 8}));
    first->bias.fill_(0.1);
  }
  std::vector<torch::Tensor> values() const {
    return {first->weight.detach().clone(),
            first->bias.detach().clone(),
            second->weight.detach().clone()};
  }
  torch::nn::Linear first{8, 8};
  ReadsDetached second;
};

torch::Tensor rows(int rank, int ranks) {
  return torch::linspace(-2, 3, 12 * 8).view({12, 8}).chunk(ranks, 0)[static_cast<size_t>(rank)];
}

TEST(GatheredAsLong, AsADetachedWeightIsRead) {
  at::set_num_threads(1);
  DetachedPair plain;
  {
    SGD optimizer(std::vector{plain.first->weight, plain.first->bias, plain.second->weight}, 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      torch::tanh(plain.second(torch::tanh(plain.first(rows(0, 1))))).mean().backward();
      optimizer.step();
    }
  }
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      DetachedPair pair;
      FullySharded sharded(group);
      auto first = sharded.wrap(pair.first);
      auto second = sharded.wrap(pair.second);
      SGD optimizer(sharded.parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        torch::tanh(second(torch::tanh(first(rows(group.rank(), ranks))))).mean().backward();
        EXPECT_EQ(pair.second->weight.storage().nbytes(), 0);
        optimizer.step();
      }
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(plain.values(), pair.values()), 1e-6);
    });
  }
}

template <class Critic>
torch::Tensor penalty_of(const Critic& critic, const torch::Tensor& x) {
  const auto between = (0.3 * x).requires_grad_();
  const auto gradient = torch::autograd::grad({critic(between).sum()},
                                              {between},
                                              {},
                                              /*retain_graph=*/true,
                                              /*create_graph=*/true)[0];
  return 10 * (gradient.norm(2, 1) - 1).square().mean();
}

// The backwards of a WGAN-GP's critic, as programs order them.
enum class Order { penalty_alone, penalty_last, penalty_first, one_by_one };

template <class Critic>
void critic_backward(const Critic& critic, const torch::Tensor& x, Order order) {
  if (order == Order::penalty_alone)
    return penalty_of(critic, x).backward();
  if (order == Order::penalty_last) {
    const auto apart = critic(-x).mean() - critic(x).mean();
    return (apart + penalty_of(critic, x)).backward();
  }
  const auto penalty = penalty_of(critic, x);
  const auto apart = critic(-x).mean() - critic(x).mean();
  if (order == Order::penalty_first)
    return (penalty + apart).backward();
  apart.backward();
  penalty.backward();
}

template <class Critic>
void train_critic(
    const Critic& critic, torch::optim::Optimizer& optimizer, Order order, int rank, int ranks) {
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    critic_backward(critic, mlp_batch(step).of(rank, ranks).x, order);
    optimizer.step();
  }
}

class GradientPenalty : public ::testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(Orders,
                         GradientPenalty,
                         ::testing::Values(Order::penalty_alone,
                                           Order::penalty_last,
                                           Order::penalty_first,
                                           Order::one_by_one));

TEST_P(GradientPenalty, IsThatOfOneProcess) {
  at::set_num_threads(1);
  auto plain = sharded_mlp();
  {
    SGD optimizer(plain->parameters(), 0.01);
    train_critic(
        [&](const torch::Tensor& x) { return plain->forward(x); }, optimizer, GetParam(), 0, 1);
  }
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      auto net = sharded_mlp();
      FullySharded sharded(group);
      LayeredMlpImpl model(net, sharded);
      SGD optimizer(sharded.parameters(), 0.01);
      train_critic([&](const torch::Tensor& x) { return model.forward(x); },
                   optimizer,
                   GetParam(),
                   group.rank(),
                   ranks);
      {
        const torch::NoGradGuard no_grad;
        model.forward(mlp_batch(0).x);
      }
      for (const auto& parameter : net->parameters())
        EXPECT_EQ(parameter.storage().nbytes(), 0);
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(plain->parameters(), net->parameters()), 5e-6);
    });
  }
}

// The gradient of an input alone reduces nothing, and leaves nothing to the step.
TEST(GatheredAsLong, AsTheGradientOfAnInputIsAsked) {
  run_ranks(2, [](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp(), plain = sharded_mlp();
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    const auto x = mlp_batch(0).x.clone().requires_grad_();
    const auto loss = model.forward(x).square().sum(), expected = plain->forward(x).square().sum();
    const auto gradient = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
    EXPECT_LE(farthest_apart({gradient}, {torch::autograd::grad({expected}, {x}, {}, true)[0]}),
              1e-5);
    EXPECT_EQ(sharded.traffic().scattered, 0);
    for (const auto& part : sharded.parameters())
      EXPECT_FALSE(part.grad().defined());
    loss.backward();  // the same graph again
    expected.backward();
    double squares = 0;
    for (const auto& parameter : plain->parameters())
      squares += parameter.grad().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sharded.clip_grad_norm(1e9).item<float>() / std::sqrt(squares), 1, 1e-5);
  });
}

// Meta-learning: the inner step asks for gradients of parameters that the rest of the forward
// reads.
struct MetaLearnerImpl : torch::nn::Module {
  MetaLearnerImpl() {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::linspace(-0.5, 0.5, 64).view({8, 8}));
    layer->bias.fill_(0.1);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = torch::tanh(layer(x)).square().mean();
    const auto slope = torch::autograd::grad({inner}, {layer->weight}, {}, true, true)[0];
    return torch::tanh(torch::linear(x, layer->weight - rate * slope, layer->bias));
  }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(8, 8))};
  torch::Tensor rate = register_parameter("rate", torch::tensor(0.1F));
};
TORCH_MODULE(MetaLearner);

void train_meta_learner(auto& model, std::vector<torch::Tensor> parameters, int rank, int ranks) {
  SGD optimizer(std::move(parameters), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    for (const auto& task : rows(rank, ranks).split(2)) {
      const auto of_task = model(task).square().mean();
      loss = loss.defined() ? loss + of_task : of_task;
    }
    (loss * static_cast<double>(ranks)).backward();
    optimizer.step();
  }
}

TEST(GatheredAsLong, AsAForwardGoesOnAfterABackwardOfItsOwn) {
  at::set_num_threads(1);
  MetaLearner plain;
  train_meta_learner(plain, plain->parameters(), 0, 1);
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      MetaLearner net;
      FullySharded sharded(group);
      auto model = sharded.wrap(net);
      train_meta_learner(model, sharded.parameters(), group.rank(), ranks);
      EXPECT_EQ(net->layer->weight.storage().nbytes(), 0);
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(plain->parameters(), net->parameters()), 1e-6);
    });
  }
}

// One in front with parameters that are frozen is freed before the end of backward.
TEST(GatheredAsLong, AndNoLongerWithFrozenParameters) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    net->ptr(4)->parameters()[0].requires_grad_(false);
    FullySharded sharded(group);
    LayeredMlpImpl model(net, sharded);
    auto x = mlp_batch(0).x.clone().requires_grad_();
    bool freed = false;
    x.register_hook([&](const torch::Tensor&) {
      freed = net->ptr(4)->parameters()[0].storage().nbytes() == 0;
    });
    model.forward(x).sum().backward();
    EXPECT_TRUE(freed);
  });
}

TEST(AddingUp, IsInTheTypeOfTheReduction) {
  constexpr int64_t kMicroBatches = 64;
  const auto micro = [](int64_t i) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(500 + i));
    return torch::randn({4, 13}, generator).to(torch::kBFloat16).abs();
  };
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    torch::nn::Linear plain(13, 5), layer(13, 5);
    for (auto& model : {plain, layer})
      for (const auto& parameter : model->parameters())
        parameter.data().fill_(0.125);
    plain->to(torch::kBFloat16);
    FullySharded sharded(group, {.compute_dtype = torch::kBFloat16});
    auto model = sharded.wrap(layer);
    torch::Tensor weight = torch::zeros({5, 13}), bias = torch::zeros({5});
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      plain->zero_grad();
      plain(micro(i)).sum().backward();
      weight += plain->weight.grad();
      bias += plain->bias.grad();
      const auto local = i + 1 < kMicroBatches ? sharded.no_sync() : nullptr;
      model(micro(i)).sum().backward();
    }
    SGD(sharded.parameters(), 1.0).step();
    const auto whole = sharded.whole_parameters();
    EXPECT_LE(((0.125 - layer->weight) / weight - 1).abs().max().item<float>(), 1e-6);
    EXPECT_LE(((0.125 - layer->bias) / bias - 1).abs().max().item<float>(), 1e-6);
  });
}

}  // namespace
}  // namespace muster::testing
