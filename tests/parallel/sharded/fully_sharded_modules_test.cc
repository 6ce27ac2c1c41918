// Which modules can be wrapped, what their forwards may return, and how their parts come to an
// optimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/train/clip.h"
#include "muster/train/ema.h"
#include "muster/train/precision.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::LinearImpl;
using torch::optim::SGD;
using torch::optim::SGDOptions;

Linear linear_of_ones(int64_t size = 3) {
  Linear layer(size, size);
  for (const at::Tensor& parameter : layer->parameters())
    parameter.data().fill_(1);
  return layer;
}

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// The example of docs/parallel/sharded.md.
struct DocsBlockImpl : torch::nn::Module {
  DocsBlockImpl() : layer(register_module("layer", Linear(3, 3))) {
    for (const at::Tensor& parameter : layer->parameters())
      parameter.data().fill_(0.1);
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(layer(x)); }
  Linear layer;
};
TORCH_MODULE(DocsBlock);

struct DocsNet : torch::nn::Module {
  explicit DocsNet(FullySharded& sharded) {
    for (int i = 0; i < 4; ++i) {
      DocsBlock block;
      register_module(std::to_string(i), block);
      blocks.push_back(sharded.wrap(block));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& block : blocks)
      x = block(x);
    return x;
  }
  std::vector<FullyShardedModule<DocsBlock>> blocks;
};

TEST(FullyShardedModules, AnOuterModuleNeedsNoParametersOfItsOwn) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group, {.compute_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat});
    auto net = std::make_shared<DocsNet>(sharded);
    auto model = sharded.wrap(net);
    SGD optimizer(sharded.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      const auto loss = model(torch::ones({2, 3}, torch::kBFloat16)).sum();
      loss.backward();
      sharded.clip_grad_norm(1.0);
      optimizer.step();
    }
    const auto whole = sharded.whole_parameters();
    for (const at::Tensor& parameter : net->parameters())
      EXPECT_TRUE(parameter.lt(0.0999).all().item<bool>());
  });
}

TEST(FullyShardedModules, WrappedTwiceOrAfterTheOuterOneAreRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    DocsBlock block;
    auto model = sharded.wrap(block);
    EXPECT_THAT(error_of([&] { sharded.wrap(block); }),
                HasSubstr("wrap inner modules first, each once"));
    EXPECT_THAT(error_of([&] { sharded.wrap(block->layer); }),
                HasSubstr("wrap inner modules first"));
  });
}

struct TiedPairImpl : torch::nn::Module {
  TiedPairImpl()
      : first(register_module("first", linear_of_ones())),
        second(register_module("second", linear_of_ones())) {
    second->weight = second->register_parameter("weight2", first->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second->forward(first->forward(x)); }
  Linear first, second;
};

TEST(FullyShardedModules, WeightsTiedBetweenModulesWrappedApartAreRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded apart(group);
    auto pair = std::make_shared<TiedPairImpl>();
    auto first = apart.wrap(pair->first);
    EXPECT_THAT(error_of([&] { apart.wrap(pair->second); }), HasSubstr("'weight2', which is tied"));
    EXPECT_THAT(error_of([&] { apart.wrap(pair); }), HasSubstr("'second.weight2', which is tied"));
    // Inside of one module it is a weight as any other, freed after the forward.
    FullySharded together(group);
    auto both = std::make_shared<TiedPairImpl>();
    auto model = together.wrap(both);
    const auto loss = model(torch::ones({1, 3})).sum();
    EXPECT_EQ(both->first->weight.storage().nbytes(), 0);
    loss.backward();
    EXPECT_GT(together.clip_grad_norm(1e9).item<float>(), 0);
  });
}

struct HeadedImpl : torch::nn::Module {
  HeadedImpl()
      : body(register_module("body", linear_of_ones())),
        head(register_module("head", linear_of_ones())) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(body(x)); }
  Linear body, head;
};

// Returns what two ranks log in two steps with a head that came after wrap().
std::string said_of_late_head(bool is_trained) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = std::make_shared<HeadedImpl>();
    auto model = sharded.wrap(net);
    net->head = net->replace_module("head", linear_of_ones());
    for (const at::Tensor& parameter : net->head->parameters())
      parameter.set_requires_grad(is_trained);
    SGD optimizer(sharded.parameters(), SGDOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      model(torch::ones({2, 3})).mean().backward();
      optimizer.step();
    }
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST(FullyShardedModules, AHeadThatCameAfterWrapIsNamedOnce) {
  const std::string said = said_of_late_head(true);
  const size_t first = said.find("'head.weight' later");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("'head.weight' later", first + 1), std::string::npos) << said;
  EXPECT_THAT(said, HasSubstr("before wrap()"));
}

TEST(FullyShardedModules, AFrozenHeadThatCameAfterWrapIsLetBe) {
  EXPECT_EQ(said_of_late_head(false).find("wrap()"), std::string::npos);
}

struct Hidden {
  torch::Tensor inside;
};
struct HidingImpl : torch::nn::Module {
  HidingImpl() : layer(register_module("layer", linear_of_ones())) {}
  Hidden forward(const torch::Tensor& x) { return {layer(x)}; }
  Linear layer;
};
struct LendingImpl : torch::nn::Module {
  LendingImpl() : layer(register_module("layer", linear_of_ones())) {}
  torch::Tensor forward(const torch::Tensor&) { return layer->weight.t(); }
  Linear layer;
};

TEST(FullyShardedModules, OutputsThatNothingCanBeSeenOfAreRefused) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto hiding = sharded.wrap(std::make_shared<HidingImpl>());
    auto lending = sharded.wrap(std::make_shared<LendingImpl>());
    EXPECT_THAT(error_of([&] { hiding(torch::ones({1, 3})); }),
                HasSubstr("give the struct a member tensors()"));
    EXPECT_THAT(error_of([&] { lending(torch::ones({1, 3})); }), HasSubstr("return its clone()"));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(hiding(torch::ones({1, 3})).inside.eq(4).all().item<bool>());
  });
}

TEST(FullyShardedModules, GroupsByShapeBecomeGroupsOfParts) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto layer = linear_of_ones();
    auto model = sharded.wrap(layer);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector{layer->weight},
                        std::make_unique<SGDOptions>(SGDOptions(0.5).weight_decay(0.5)));
    groups.emplace_back(std::vector{layer->bias});
    SGD optimizer(sharded.parameters(groups), SGDOptions(0.5));
    model(torch::zeros({1, 3})).sum().backward();
    optimizer.step();
    {
      const auto whole = sharded.whole_parameters();
      EXPECT_TRUE(layer->weight.eq(0.75).all().item<bool>());
      EXPECT_TRUE(layer->bias.eq(0.5).all().item<bool>());
    }
    groups.emplace_back(linear_of_ones()->parameters());
    EXPECT_THAT(error_of([&] { sharded.parameters(groups); }), HasSubstr("of shape [3, 3]"));
  });
}

// A rank of three has no element of the bias; the parts' type is not the type that modules compute
// in.
TEST(FullyShardedModules, StateAndRatesAreGatheredFromRanksWithoutPieces) {
  run_ranks(3, [](ProcessGroup& group) {
    FullySharded sharded(group, {.compute_dtype = torch::kBFloat16});
    auto layer = linear_of_ones(1);
    auto model = sharded.wrap(layer);
    SGD optimizer(sharded.parameters(), SGDOptions(0.5).momentum(0.9));
    model(torch::ones({1, 1}, torch::kBFloat16)).sum().backward();
    optimizer.step();
    optimizer.param_groups()[0].options().set_lr(0.25);
    const auto whole = sharded.whole_parameters();
    SGD plain(layer->parameters(), SGDOptions(0.1).momentum(0.9));
    sharded.gather_state(optimizer, plain);
    EXPECT_EQ(plain.param_groups()[0].options().get_lr(), 0.25);
    for (const at::Tensor& parameter : layer->parameters()) {
      auto& state = static_cast<torch::optim::SGDParamState&>(
          *plain.state().at(parameter.unsafeGetTensorImpl()));
      EXPECT_EQ(state.momentum_buffer().scalar_type(), torch::kFloat);
      EXPECT_EQ(state.momentum_buffer().item<float>(), 1);
    }
    plain.param_groups()[0].options().set_lr(0.125);
    sharded.divide_state(optimizer, plain);
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.125);
  });
}

TEST(FullyShardedModules, WhatReadsParametersWithoutMemorySaysSo) {
  run_ranks(1, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto layer = linear_of_ones();
    Ema before(*layer, 0.9);
    auto model = sharded.wrap(layer);
    EXPECT_THAT(error_of([&] { Ema(*layer, 0.9); }), HasSubstr("whole_parameters()"));
    EXPECT_THAT(error_of([&] { before.update(); }), HasSubstr("whole_parameters()"));
    EXPECT_THAT(error_of([&] { const auto averages = before.swap(); }),
                HasSubstr("whole_parameters()"));
    EXPECT_THAT(error_of([&] {
                  save_checkpoint({.directory = "/tmp/none"}, {*layer}, {.step = 1}, group);
                }),
                HasSubstr("whole_parameters()"));
    const auto whole = sharded.whole_parameters();
    before.update();
  });
}

TEST(FullyShardedModules, PartsAreNoWholeGradientsToClip) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto model = sharded.wrap(linear_of_ones());
    model(torch::ones({1, 3})).sum().backward();
    EXPECT_THAT(error_of([&] { clip_grad_norm(sharded.parameters(), 1.0); }),
                HasSubstr("clip_grad_norm of the sharded"));
    EXPECT_THAT(error_of([&] { grad_norm(sharded.parameters()); }),
                HasSubstr("got sharded gradients"));
    Precision alone(torch::kCPU, "fp16"), together(torch::kCPU, {.type = "fp16", .group = group});
    EXPECT_THAT(error_of([&] { alone.unscale(sharded.parameters()); }),
                HasSubstr("PrecisionOptions::group"));
    EXPECT_EQ(error_of([&] { together.unscale(sharded.parameters()); }), "nothing");
  });
}

// A block's forward again in its backward, as activation checkpointing does.
struct AgainFunction : torch::autograd::Function<AgainFunction> {
  using Block = FullyShardedModule<DocsBlock>;
  struct KeptBlock : torch::CustomClassHolder {
    explicit KeptBlock(Block* block) : block(block) {}
    Block* const block;
  };
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& x,
                               Block* block) {
    context->save_for_backward({x});
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<KeptBlock>(block));
    const torch::NoGradGuard no_grad;
    return (*block)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_gradients(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto kept = context->saved_data["block"].toCapsule();
    auto& block = *static_cast<const KeptBlock&>(*kept).block;
    block(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

TEST(FullyShardedModules, AForwardComputedAgainInABackwardGathersNothingTwice) {
  run_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    DocsNet net(sharded);
    auto head = sharded.wrap(linear_of_ones());
    const auto x = torch::ones({2, 3}).requires_grad_();
    const auto step = [&](bool again) {
      const int64_t before = sharded.traffic().gathered;
      auto y = x;
      for (auto& block : net.blocks)
        y = again ? AgainFunction::apply(y, &block) : block(y);
      head(y).sum().backward();
      return sharded.traffic().gathered - before;
    };
    step(false);
    const auto norm = sharded.clip_grad_norm(1e9).item<float>();
    SGD(sharded.parameters(), 0.1).zero_grad();
    const int64_t plain = step(true);
    EXPECT_NEAR(sharded.clip_grad_norm(1e9).item<float>(), norm, 1e-6);
    EXPECT_EQ(step(true), plain);
    EXPECT_EQ(plain, 2 * 5 * 12 * 4);  // five modules, forward and backward
  });
}

}  // namespace
}  // namespace muster::testing
