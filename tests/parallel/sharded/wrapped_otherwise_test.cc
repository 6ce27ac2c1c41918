// Models that something else has wrapped, and modules that are tied by assigned members: what is
// wrong, and what to do, in words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Zero = ShardedOptimizer<torch::optim::SGD>;

torch::nn::Linear unwrapped_layer() {
  torch::nn::Linear layer(4, 4);
  for (const auto& parameter : layer->parameters())
    parameter.data().fill_(1);
  return layer;
}

void expect_on_all(const std::function<void(ProcessGroup&)>& body,
                   const ::testing::Matcher<std::string>& text) {
  for (const auto& failure : failures_of_ranks(2, body))
    EXPECT_THAT(message_of(failure), text);
}

TEST(WrappedOtherwise, ShardedGradientsOfADistributedDataParallelAreRefused) {
  expect_on_all(
      [](ProcessGroup& group) {
        auto net = unwrapped_layer();
        const DistributedDataParallel model(net, group);
        const Zero optimizer(net->parameters(), 0.1, group, {.gradients = true});
      },
      AllOf(
          HasSubstr("sharded optimizer: expected parameters whose gradients nothing else averages"),
          HasSubstr("got parameter 0, [4, 4], of a model that a DistributedDataParallel wraps"),
          HasSubstr("ShardedOptimizer without .gradients")));
  expect_on_all(
      [](ProcessGroup& group) {
        auto net = unwrapped_layer();
        const Zero optimizer(net->parameters(), 0.1, group, {.gradients = true});
        const DistributedDataParallel model(net, group);
      },
      AllOf(HasSubstr("DistributedDataParallel: expected parameters whose gradients nothing else"),
            HasSubstr("got 'weight', which FullySharded, or a ShardedOptimizer with .gradients"),
            HasSubstr("leave .gradients of the ShardedOptimizer out")));
}

TEST(WrappedOtherwise, AFullyShardedModelAndADistributedDataParallelAreRefusedToo) {
  expect_on_all(
      [](ProcessGroup& group) {
        auto net = unwrapped_layer();
        const DistributedDataParallel model(net, group);
        FullySharded(group).wrap(net);
      },
      HasSubstr("fully sharded: expected parameters whose gradients nothing else averages"));
  expect_on_all(
      [](ProcessGroup& group) {
        auto net = unwrapped_layer();
        FullySharded(group).wrap(net);
        const DistributedDataParallel model(net, group);
      },
      HasSubstr("got 'weight', which FullySharded, or a ShardedOptimizer with .gradients"));
}

// Wrapped once by each, one after the other.
TEST(WrappedOtherwise, WhatIsGoneIsNoObstacle) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = unwrapped_layer();
    std::optional<DistributedDataParallel<torch::nn::Linear>> model(std::in_place, net, group);
    (*model)(torch::ones({2, 4})).sum().backward();
    model.reset();
    net->zero_grad();
    std::optional<Zero> optimizer(std::in_place,
                                  net->parameters(),
                                  torch::optim::SGDOptions(0.1),
                                  group,
                                  ShardedOptimizerOptions{.gradients = true});
    net(torch::ones({2, 4})).sum().backward();
    optimizer->step();
    optimizer.reset();
    net->zero_grad();
    model.emplace(net, group);
    (*model)(torch::ones({2, 4})).sum().backward();
    EXPECT_TRUE(net->weight.grad().defined());
  });
}

// A frozen parameter has no gradient that both would take.
TEST(WrappedOtherwise, WhatAShardedOptimizerHasMayLieFrozenInADistributedDataParallel) {
  run_ranks(2, [](ProcessGroup& group) {
    auto judge = unwrapped_layer();
    const Zero optimizer(judge->parameters(), 0.1, group, {.gradients = true});
    for (const auto& parameter : judge->parameters())
      parameter.requires_grad_(false);
    auto maker = unwrapped_layer();
    DistributedDataParallel model(torch::nn::Sequential(maker, judge), group);
    model(torch::ones({2, 4})).sum().backward();
    EXPECT_TRUE(maker->weight.grad().defined());
    EXPECT_FALSE(judge->weight.grad().defined());
  });
}

TEST(WrappedOtherwise, AModelOfAFullyShardedThatIsGoneIsNamed) {
  expect_on_all(
      [](ProcessGroup& group) {
        auto net = unwrapped_layer();
        FullySharded(group).wrap(net);
        FullySharded(group).wrap(net);
      },
      AllOf(HasSubstr("got parameter 0, Float [4, 4], without memory, as a FullySharded leaves "),
            HasSubstr("also one that is gone"),
            HasSubstr("make the model anew to wrap it again")));
}

struct TiedByHandImpl : torch::nn::Module {
  TiedByHandImpl() {
    embed = register_module("embed", torch::nn::Embedding(6, 4));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)));
    for (const auto& parameter : parameters())
      parameter.data().fill_(1);
    head->weight = embed->weight;
  }
  at::Tensor forward(const at::Tensor& x) { return head(embed(x)); }
  torch::nn::Embedding embed = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(TiedByHand);

TEST(WrappedOtherwise, ModulesThatAMemberTiesAreNotWrappedApart) {
  const auto expect_refused = [](const std::function<void(FullySharded&, TiedByHand&)>& wrap,
                                 const std::string& what) {
    expect_on_all(
        [&](ProcessGroup& group) {
          TiedByHand net;
          FullySharded sharded(group);
          wrap(sharded, net);
        },
        AllOf(HasSubstr("expected parameters that one wrapped module alone has, got '" + what),
              HasSubstr("wrap one module that holds")));
  };
  expect_refused(
      [](FullySharded& sharded, TiedByHand& net) {
        sharded.wrap(net->embed);
        sharded.wrap(net->head);
      },
      "weight', which is tied");
  expect_refused(
      [](FullySharded& sharded, TiedByHand& net) {
        sharded.wrap(net->head);
        sharded.wrap(net->embed);
      },
      "");
  expect_refused(
      [](FullySharded& sharded, TiedByHand& net) {
        sharded.wrap(net->embed);
        sharded.wrap(net);
      },
      "head.weight', which is tied");
}

// A class whose members nobody knows: its forward finds no memory.
struct OwnReaderImpl : torch::nn::Module {
  OwnReaderImpl() { weight = register_parameter("weight", torch::ones({6, 4})); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(OwnReader);

TEST(WrappedOtherwise, AForwardThatReadsAnotherModulesParametersIsTold) {
  expect_on_all(
      [](ProcessGroup& group) {
        TiedByHand net;
        OwnReader head;
        head->weight = net->embed->weight;
        FullySharded sharded(group);
        auto embed = sharded.wrap(net->embed);
        auto reader = sharded.wrap(head);
        reader(embed(torch::arange(6)));
      },
      AllOf(HasSubstr("expected a forward that reads parameters of its own wrapped module"),
            HasSubstr("(rank "),
            HasSubstr("wrap in one module what shares a weight, also by an assigned member"),
            HasSubstr("storage of size 0")));
}

// The gradient of one process, whose copy of the head's own weight nothing uses either.
TEST(WrappedOtherwise, OneModuleThatHoldsBothTrainsThem) {
  const auto x = torch::arange(6);
  TiedByHand alone;
  alone(x).square().mean().backward();
  run_ranks(2, [&](ProcessGroup& group) {
    for (const bool apart : {false, true}) {
      TiedByHand net;
      FullySharded sharded(group);
      if (apart)
        sharded.wrap(net->head);
      auto model = sharded.wrap(net);
      model(x).square().mean().backward();
      torch::optim::SGD optimizer(sharded.parameters(), 1);
      optimizer.step();
      const auto whole = sharded.whole_parameters();
      EXPECT_TRUE(net->embed->weight.allclose(alone->embed->weight - alone->embed->weight.grad()));
    }
  });
}

}  // namespace
}  // namespace muster::testing
