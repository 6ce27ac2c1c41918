// Sharded gradients where not every backward reaches every parameter, and where parameters are
// frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

torch::nn::Linear layer_of_ones() {
  torch::nn::Linear layer(2, 2);
  for (const at::Tensor& parameter : layer->parameters())
    parameter.data().fill_(1);
  return layer;
}

std::vector<at::Tensor> parameters_of_both(torch::nn::Linear& a, torch::nn::Linear& b) {
  auto all = a->parameters();
  for (const at::Tensor& parameter : b->parameters())
    all.push_back(parameter);
  return all;
}

std::string what_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// Each step: one head's backward without a reduction, then the other's with one.
TEST(AlternatingHeads, KeepWhatWasAccumulated) {
  run_ranks(2, [](ProcessGroup& group) {
    auto a = layer_of_ones(), b = layer_of_ones();
    ShardedOptimizer<SGD> optimizer(parameters_of_both(a, b), 1.0, group, {.gradients = true});
    const auto x = torch::full({1, 2}, 1.0 + 2.0 * group.rank());  // the mean is 2
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        const auto local = optimizer.no_sync();
        a->forward(x).sum().backward();
      }
      b->forward(x).sum().backward();
      optimizer.step();
      for (auto& head : {a, b}) {
        EXPECT_TRUE(head->weight.eq(1 - 2 * (step + 1)).all().item<bool>()) << head->weight;
        EXPECT_TRUE(head->bias.eq(1 - (step + 1)).all().item<bool>()) << head->bias;
        EXPECT_EQ(head->weight.grad().storage().nbytes(), 0);
      }
    }
  });
}

TEST(AlternatingHeads, KeepWhatWasAccumulatedInUnits) {
  run_ranks(2, [](ProcessGroup& group) {
    auto a = layer_of_ones(), b = layer_of_ones();
    FullySharded sharded(group);
    auto first = sharded.wrap(a), second = sharded.wrap(b);
    SGD optimizer(sharded.parameters(), 1.0);
    const auto x = torch::full({1, 2}, 1.0 + 2.0 * group.rank());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      {
        const auto local = sharded.no_sync();
        first(x).sum().backward();
      }
      second(x).sum().backward();
      optimizer.step();
      const auto whole = sharded.whole_parameters();
      for (auto& head : {a, b}) {
        EXPECT_TRUE(head->weight.eq(1 - 2 * (step + 1)).all().item<bool>()) << head->weight;
        EXPECT_EQ(head->weight.grad().storage().nbytes(), 0);
      }
    }
  });
}

TEST(Unfreezing, IsRefusedWithTheNextStep) {
  run_ranks(2, [](ProcessGroup& group) {
    auto a = layer_of_ones(), b = layer_of_ones();
    a->weight.requires_grad_(false);
    ShardedOptimizer<SGD> optimizer(parameters_of_both(a, b), 1.0, group, {.gradients = true});
    const auto x = torch::ones({1, 2});
    a->weight.requires_grad_(true);
    EXPECT_THAT(what_of([&] { b->forward(a->forward(x)).sum().backward(); }),
                HasSubstr("got one of shape [2, 2] that requires a gradient"));
    auto c = layer_of_ones();
    c->weight.requires_grad_(false);
    FullySharded sharded(group);
    auto model = sharded.wrap(c);
    c->weight.requires_grad_(true);
    EXPECT_THAT(what_of([&] { model(x); }), HasSubstr("got 'weight'"));
  });
}

// What is frozen later has no gradient, and so is not decayed either.
TEST(Freezing, LeavesParametersAsTheyAre) {
  run_ranks(2, [](ProcessGroup& group) {
    auto a = layer_of_ones(), b = layer_of_ones(), c = layer_of_ones();
    const auto options = SGDOptions(0.5).weight_decay(0.1);
    ShardedOptimizer<SGD> optimizer(parameters_of_both(a, b), options, group, {.gradients = true});
    FullySharded sharded(group);
    auto model = sharded.wrap(c);
    SGD of_parts(sharded.parameters(), options);
    const auto x = torch::ones({1, 2});
    for (auto& layer : {a, c})
      layer->weight.requires_grad_(false);
    for (int step = 0; step < 2; ++step) {
      b->forward(a->forward(x)).sum().backward();
      model(x).sum().backward();
      optimizer.step();
      of_parts.step();
    }
    const auto whole = sharded.whole_parameters();
    for (auto& layer : {a, c}) {
      EXPECT_TRUE(layer->weight.eq(1).all().item<bool>());
      EXPECT_TRUE(layer->bias.lt(1).all().item<bool>());
    }
  });
}

TEST(ShardedNorm, OfDoublesHasTheirPrecision) {
  run_ranks(2, [](ProcessGroup& group) {
    auto layer = layer_of_ones();
    layer->to(torch::kDouble);
    ShardedOptimizer<SGD> optimizer(layer->parameters(), 1.0, group, {.gradients = true});
    layer->forward(torch::full({1, 2}, 1.0 / 3, torch::kDouble)).sum().backward();
    EXPECT_NEAR(optimizer.clip_grad_norm(1.0).item<double>(), std::sqrt(4.0 / 9 + 2), 1e-15);
  });
}

TEST(ShardedGroups, ThatComeLaterAreRefused) {
  run_ranks(1, [](ProcessGroup& group) {
    auto a = layer_of_ones(), b = layer_of_ones();
    ShardedOptimizer<SGD> optimizer(a->parameters(), 1.0, group);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(b->parameters()));
    EXPECT_THAT(what_of([&] { optimizer.step(); }), HasSubstr("expected 1 parameter group, got 2"));
  });
}

TEST(ShardedGroups, TakeNoParametersLater) {
  for (const bool gradients : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto a = layer_of_ones(), b = layer_of_ones();
      ShardedOptimizer<SGD> optimizer(a->parameters(), 1.0, group, {.gradients = gradients});
      optimizer.step();
      optimizer.param_groups()[0].params().push_back(b->weight);
      EXPECT_THAT(what_of([&] { optimizer.step(); }),
                  HasSubstr("that parameter group 0 had at construction, got "));
      auto& parameters = optimizer.param_groups()[0].params();
      parameters.pop_back();
      std::swap(parameters.front(), b->weight);
      EXPECT_THAT(what_of([&] { optimizer.step(); }), HasSubstr(" others (rank "));
    });
  }
}

TEST(ShardedTypes, AreThoseOfTheConstruction) {
  for (const bool gradients : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto layer = layer_of_ones();
      ShardedOptimizer<SGD> optimizer(layer->parameters(), 1.0, group, {.gradients = gradients});
      layer->to(torch::kBFloat16);
      EXPECT_THAT(what_of([&] { optimizer.step(); }),
                  HasSubstr("expected parameters of Float, as they were sharded, got one of "
                            "BFloat16 ["));
    });
  }
}

TEST(ShardedMemory, OfTwoTrainedParametersIsRefused) {
  const auto tied = [] {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      parameter.fill_(1);
    net->parameters()[2].set_data(net->parameters()[0].detach());
    return net;
  };
  const std::string error = "as set_data ties them (rank ";
  run_ranks(2, [&](ProcessGroup& group) {
    for (const bool gradients : {false, true}) {
      auto net = tied();
      EXPECT_THAT(what_of([&] {
                    ShardedOptimizer<SGD>(net->parameters(), 1.0, group, {.gradients = gradients});
                  }),
                  HasSubstr("sharded optimizer: expected trained parameters with memory of their"));
      for (auto& parameter : net->parameters())
        parameter.requires_grad_(false);
      EXPECT_EQ(what_of([&] { ShardedOptimizer<SGD>(net->parameters(), 1.0, group); }), "nothing");
    }
    auto net = tied();
    FullySharded sharded(group);
    EXPECT_THAT(what_of([&] { sharded.wrap(net); }), HasSubstr(error));
    auto apart = tied();  // the second is wrapped when the first has left the memory
    FullySharded of_layers(group);
    of_layers.wrap(std::dynamic_pointer_cast<torch::nn::LinearImpl>(apart->ptr(0)));
    EXPECT_THAT(what_of([&] {
                  of_layers.wrap(std::dynamic_pointer_cast<torch::nn::LinearImpl>(apart->ptr(1)));
                }),
                HasSubstr(error));
    auto again = layer_of_ones();  // views of one flat memory, beside each other
    ShardedOptimizer<SGD> first(again->parameters(), 1.0, group);
    ShardedOptimizer<SGD> second(again->parameters(), 1.0, group);
  });
}

}  // namespace
}  // namespace muster::testing
