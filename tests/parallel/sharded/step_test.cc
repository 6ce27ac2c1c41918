// TrainStep over sharded gradients: as a loop of one's own, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/train/step.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

torch::nn::Sequential step_net() {
  torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  for (const auto& parameter : net->parameters())
    parameter.data().copy_(torch::linspace(-0.5, 0.4, parameter.numel()).view_as(parameter));
  return net;
}

at::Tensor step_input(int64_t step, const ProcessGroup& group) {
  return (torch::arange(20, at::kFloat) + static_cast<double>(17 * step + group.rank()))
      .sin()
      .view({4, 5});
}

template <class Function>
std::string refusal_of(const Function& function) {
  try {
    function();
    return "nothing";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ShardedStep, TrainsAsALoopOfOnesOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    auto by_hand = step_net(), by_step = step_net();
    ShardedOptimizer<SGD> first(
        by_hand->parameters(), SGDOptions(0.1).momentum(0.9), group, {.gradients = true});
    ShardedOptimizer<SGD> second(
        by_step->parameters(), SGDOptions(0.1).momentum(0.9), group, {.gradients = true});
    TrainStep step(by_step, second, {.group = group});
    for (int64_t i = 0; i < 5; ++i) {
      const auto x = step_input(i, group);
      first.zero_grad();
      by_hand->forward(x).square().mean().backward();
      first.step();
      step.run(1, true, [&] { return by_step->forward(x).square().mean(); });
    }
    for (size_t i = 0; i < by_hand->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(by_hand->parameters()[i], by_step->parameters()[i])) << i;
  });
}

// .clip in place of clip_norm: a loop of one's own that clips, and one model on one rank that does.
TEST(ShardedStep, ClipsByTheNormOfAllParts) {
  run_ranks(2, [](ProcessGroup& group) {
    constexpr double kMaxNorm = 0.01;
    auto alone = step_net(), reduced = step_net(), sharded_net = step_net();
    SGD plain(alone->parameters(), SGDOptions(0.1));
    ShardedOptimizer<SGD> zero2(reduced->parameters(), SGDOptions(0.1), group, {.gradients = true});
    FullySharded sharded(group);
    auto model = sharded.wrap(sharded_net);
    SGD parts(sharded.parameters(), SGDOptions(0.1));
    TrainStep step(alone, plain, {.clip_norm = kMaxNorm});
    TrainStep zero2_step(
        reduced, zero2, {.clip = [&] { return zero2.clip_grad_norm(kMaxNorm); }, .group = group});
    TrainStep parts_step(
        sharded_net,
        parts,
        {.clip = [&] { return sharded.clip_grad_norm(kMaxNorm); }, .group = group});
    for (int64_t i = 0; i < 5; ++i) {
      const auto mine = step_input(i, group);
      at::Tensor both = torch::empty({8, 5});
      group.all_gather(both, mine);
      step.run(1, true, [&] { return alone->forward(both).square().mean(); });
      zero2_step.run(1, true, [&] { return reduced->forward(mine).square().mean(); });
      parts_step.run(1, true, [&] { return model.forward(mine).square().mean(); });
      EXPECT_GT(step.grad_norm().item<double>(), 2 * kMaxNorm);
      EXPECT_NEAR(zero2_step.grad_norm().item<double>(), step.grad_norm().item<double>(), 1e-6);
      EXPECT_NEAR(parts_step.grad_norm().item<double>(), step.grad_norm().item<double>(), 1e-6);
    }
    const auto whole = sharded.whole_parameters();
    for (size_t i = 0; i < alone->parameters().size(); ++i) {
      EXPECT_TRUE(torch::allclose(reduced->parameters()[i], alone->parameters()[i], 1e-5, 1e-6))
          << i;
      EXPECT_TRUE(torch::allclose(sharded_net->parameters()[i], alone->parameters()[i], 1e-5, 1e-6))
          << i;
    }
  });
}

TEST(ShardedStep, TwoWaysOfClippingAreRefused) {
  auto net = step_net();
  SGD optimizer(net->parameters(), SGDOptions(0.1));
  EXPECT_THAT(
      refusal_of([&] {
        TrainStep(net, optimizer, {.clip_norm = 2.0, .clip = [] { return at::Tensor(); }});
      }),
      HasSubstr("expected clip or clip_norm, got both, and clip_norm 2; leave out clip_norm"));
}

TEST(ShardedStep, ANormOfPartsIsRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = step_net();
    ShardedOptimizer<SGD> optimizer(net->parameters(), SGDOptions(0.1), group, {.gradients = true});
    EXPECT_THAT(refusal_of([&] { TrainStep(net, optimizer, {.clip_norm = 1.0, .group = group}); }),
                HasSubstr("expected no clip_norm, got sharded gradients"));
    EXPECT_THAT(refusal_of([&] { TrainStep(net, optimizer, {}); }), HasSubstr("pass .group"));
    auto whole = step_net();
    ShardedOptimizer<SGD> zero1(whole->parameters(), SGDOptions(0.1), group);
    EXPECT_EQ(refusal_of([&] { TrainStep(whole, zero1, {.clip_norm = 1.0}); }), "nothing");
    FullySharded sharded(group);
    auto divided = step_net();
    auto model = sharded.wrap(divided);
    SGD plain(sharded.parameters(), 0.1);
    EXPECT_THAT(refusal_of([&] { TrainStep(divided, plain, {.clip_norm = 1.0, .group = group}); }),
                HasSubstr("expected no clip_norm, got sharded gradients"));
  });
}

}  // namespace
}  // namespace muster::testing
