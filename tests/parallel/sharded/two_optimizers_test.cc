// Two sharded optimizers with gradients in one program: over one parameter they would take its
// gradient from each other, which is refused; one after the other, and beside each other, they
// train as plain ones do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGD;
using Zero2 = ShardedOptimizer<SGD>;

const ShardedOptimizerOptions kWithGradients{.gradients = true};
constexpr int64_t kPairSteps = 4;

void backward_of_a_part(torch::nn::Sequential& net, const ProcessGroup& group, int64_t step) {
  const ShardedBatch batch = mlp_batch(step).of(group.rank(), group.size());
  sharded_loss(net->forward(batch.x), batch.y).backward();
}

auto names_the_shared_one() {
  return AllOf(HasSubstr("expected one living ShardedOptimizer with .gradients"),
               HasSubstr("got 2 that share parameter "),
               HasSubstr("destroy the earlier one"));
}

TEST(TwoShardedOptimizers, OverOneParameterAreRefusedInBackwardOnAllRanks) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    const Zero2 head(net[4]->parameters(), 0.1, group, kWithGradients);
    const Zero2 all(net->parameters(), 0.1, group, kWithGradients);
    backward_of_a_part(net, group, 0);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), names_the_shared_one());
}

TEST(TwoShardedOptimizers, OverOneParameterAreRefusedInAStepOnAllRanks) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    Zero2 all(net->parameters(), 0.1, group, kWithGradients);
    backward_of_a_part(net, group, 0);
    const Zero2 bias({net->parameters()[1]}, 0.1, group, kWithGradients);
    all.step();
  });
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure), names_the_shared_one());
    EXPECT_THAT(message_of(failure), HasSubstr("parameter 1 of group 0, of shape [37]"));
  }
}

// The values of plain training, whose second half has a fresh optimizer.
std::vector<at::Tensor> pair_alone() {
  at::set_num_threads(1);
  auto net = sharded_mlp();
  auto optimizer = std::make_unique<SGD>(net->parameters(), 0.1);
  for (int64_t step = 0; step < kPairSteps; ++step) {
    if (step == kPairSteps / 2)
      optimizer = std::make_unique<SGD>(net->parameters(), 0.2);
    optimizer->zero_grad();
    const ShardedBatch batch = mlp_batch(step);
    sharded_loss(net->forward(batch.x), batch.y).backward();
    optimizer->step();
  }
  return values_of(*net);
}

TEST(TwoShardedOptimizers, OneAfterTheOtherTrainAsOneProcess) {
  const auto expected = pair_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp();
    auto optimizer = std::make_unique<Zero2>(net->parameters(), 0.1, group, kWithGradients);
    for (int64_t step = 0; step < kPairSteps; ++step) {
      if (step == kPairSteps / 2)
        optimizer = std::make_unique<Zero2>(net->parameters(), 0.2, group, kWithGradients);
      optimizer->zero_grad();
      backward_of_a_part(net, group, step);
      optimizer->step();
    }
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

// A refusal leaves nothing behind: the one that stays trains on.
TEST(TwoShardedOptimizers, TheOneThatStaysAfterARefusalTrainsAsOneProcess) {
  const auto expected = pair_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp();
    auto optimizer = std::make_unique<Zero2>(net->parameters(), 0.1, group, kWithGradients);
    for (int64_t step = 0; step < kPairSteps; ++step) {
      if (step == kPairSteps / 2) {
        const auto earlier = std::move(optimizer);
        optimizer = std::make_unique<Zero2>(net->parameters(), 0.2, group, kWithGradients);
        EXPECT_THAT(failure_text([&] { backward_of_a_part(net, group, step); }),
                    names_the_shared_one());
      }
      net->zero_grad();
      backward_of_a_part(net, group, step);
      optimizer->step();
    }
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

// The lists overlap, and what each trains does not: a frozen parameter has no gradient.
TEST(TwoShardedOptimizers, OfWhichEachTrainsOtherParametersTrainAsOneProcess) {
  const auto train = [](auto& net, auto& first, auto& second, auto&& backward) {
    for (int64_t step = 0; step < kPairSteps; ++step) {
      for (auto& parameter : net[0]->parameters())
        parameter.set_requires_grad(step % 2 == 0);
      for (auto& parameter : net[4]->parameters())
        parameter.set_requires_grad(step % 2 == 1);
      net->zero_grad();
      backward(step);
      (step % 2 == 0 ? first : second)->step();
    }
  };
  const auto freeze = [](const auto& module, bool frozen) {
    for (auto& parameter : module->parameters())
      parameter.set_requires_grad(!frozen);
  };
  at::set_num_threads(1);
  auto one = sharded_mlp();
  auto plain = std::make_unique<SGD>(one->parameters(), 0.1);
  freeze(one[2], true);
  train(one, plain, plain, [&](int64_t step) {
    const ShardedBatch batch = mlp_batch(step);
    sharded_loss(one->forward(batch.x), batch.y).backward();
  });
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = sharded_mlp();
    freeze(net[2], true);
    freeze(net[4], true);
    auto first = std::make_unique<Zero2>(net->parameters(), 0.1, group, kWithGradients);
    freeze(net[4], false);
    freeze(net[0], true);
    auto second = std::make_unique<Zero2>(net->parameters(), 0.1, group, kWithGradients);
    train(net, first, second, [&](int64_t step) { backward_of_a_part(net, group, step); });
    EXPECT_LE(farthest_apart(values_of(*one), net->parameters()), 2e-6);
  });
}

}  // namespace
}  // namespace muster::testing
