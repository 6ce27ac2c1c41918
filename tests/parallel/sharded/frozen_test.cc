// A parameter that is frozen while gradients of no_sync() wait for the backward that averages: they
// are dropped, and rank 0 says so. Nothing of them comes back when it is trained again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>

#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

void train_first(torch::nn::Sequential& net, int parameters, bool trains) {
  for (int i = 0; i < parameters; ++i)
    net->parameters()[i].requires_grad_(trains);
}

// As ranks do it: the second step's first micro-batch does not count for what was frozen after it:
// the first `parameters`.
std::vector<torch::Tensor> trained_as_if_dropped(int parameters = 1) {
  at::set_num_threads(1);
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), SGDOptions(0.1));
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto first = mlp_batch(2 * step), second = mlp_batch(2 * step + 1);
    sharded_loss(net->forward(first.x), first.y).backward();
    if (step == 1) {
      for (int i = 0; i < parameters; ++i)
        net->parameters()[i].mutable_grad().reset();
      train_first(net, parameters, false);
    }
    sharded_loss(net->forward(second.x), second.y).backward();
    optimizer.step();
    train_first(net, parameters, true);
  }
  return values_of(*net);
}

using Guard = std::shared_ptr<void>;

void train_with_freezing(ProcessGroup& group,
                         torch::nn::Sequential& net,
                         torch::optim::Optimizer& optimizer,
                         const std::function<at::Tensor(const at::Tensor&)>& forward,
                         const std::function<Guard()>& no_sync,
                         int parameters = 1) {
  at::set_num_threads(1);
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto first = mlp_batch(2 * step).of(group.rank(), group.size()),
               second = mlp_batch(2 * step + 1).of(group.rank(), group.size());
    {
      const Guard local = no_sync();
      sharded_loss(forward(first.x), first.y).backward();
    }
    train_first(net, parameters, step != 1);
    sharded_loss(forward(second.x), second.y).backward();
    optimizer.step();
    train_first(net, parameters, true);
  }
}

void expect_warned_of_dropped(const std::function<void(ProcessGroup&)>& body) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, body);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("frozen, whose gradients are dropped (rank 0)"));
  EXPECT_EQ(said.find("are dropped"), said.rfind("are dropped"));
}

TEST(FrozenAfterNoSync, IsSaidByAShardedOptimizer) {
  const auto expected = trained_as_if_dropped();
  expect_warned_of_dropped([&](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), SGDOptions(0.1), group, {.gradients = true});
    train_with_freezing(
        group,
        net,
        optimizer,
        [&](const at::Tensor& x) { return net->forward(x); },
        [&] { return optimizer.no_sync(); });
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

TEST(FrozenAfterNoSync, IsSaidByAFullyShardedModel) {
  const auto expected = trained_as_if_dropped();
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    expect_warned_of_dropped([&](ProcessGroup& group) {
      auto net = sharded_mlp();
      FullySharded sharded(group, {.reduce_dtype = type});
      auto model = sharded.wrap(net);
      SGD optimizer(sharded.parameters(), SGDOptions(0.1));
      train_with_freezing(
          group,
          net,
          optimizer,
          [&](const at::Tensor& x) { return model(x); },
          [&] { return sharded.no_sync(); });
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    });
  }
}

// Nothing of its module is reduced then: it has a weight and a bias.
TEST(FrozenAfterNoSync, IsSaidOfAWholeWrappedModule) {
  const auto expected = trained_as_if_dropped(2);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    expect_warned_of_dropped([&](ProcessGroup& group) {
      auto net = sharded_mlp();
      FullySharded sharded(group, {.reduce_dtype = type});
      LayeredMlpImpl model(net, sharded);
      SGD optimizer(sharded.parameters(), SGDOptions(0.1));
      train_with_freezing(
          group,
          net,
          optimizer,
          [&](const at::Tensor& x) { return model.forward(x); },
          [&] { return sharded.no_sync(); },
          2);
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    });
  }
}

}  // namespace
}  // namespace muster::testing
