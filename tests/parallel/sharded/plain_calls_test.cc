// What people write who know PyTorch: net->zero_grad(), an optimizer or a norm of
// net->parameters(). With sharded gradients it does the same, or is an error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "muster/comm/torch_compat.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/optim/groups.h"
#include "muster/optim/optim.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/train/clip.h"
#include "tests/parallel/sharded/fully_sharded_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int64_t kPlainSteps = 4;
const SGDOptions kMomentum = SGDOptions(0.1).momentum(0.9);

// One process and the joined batches.
std::vector<torch::Tensor> trained_alone() {
  at::set_num_threads(1);
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), kMomentum);
  for (int64_t step = 0; step < kPlainSteps; ++step) {
    const auto batch = mlp_batch(step);
    net->zero_grad();
    sharded_loss(net->forward(batch.x), batch.y).backward();
    optimizer.step();
  }
  return values_of(*net);
}

// A model's net->zero_grad() is the only thing that clears.
template <class Forward>
void train_clearing_the_net(ProcessGroup& group,
                            torch::nn::Sequential& net,
                            torch::optim::Optimizer& optimizer,
                            const Forward& forward) {
  at::set_num_threads(1);
  for (int64_t step = 0; step < kPlainSteps; ++step) {
    const auto batch = mlp_batch(step).of(group.rank(), group.size());
    net->zero_grad();
    sharded_loss(forward(batch.x), batch.y).backward();
    optimizer.step();
  }
}

TEST(ZeroGradOfTheNet, ClearsTheGradientsOfAFullyShardedModel) {
  const auto expected = trained_alone();
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    run_ranks(2, [&](ProcessGroup& group) {
      FullySharded sharded(group, {.compute_dtype = type});
      auto net = sharded_mlp();
      LayeredMlpImpl model(net, sharded);
      SGD optimizer(sharded.parameters(), kMomentum);
      train_clearing_the_net(
          group, net, optimizer, [&](const torch::Tensor& x) { return model.forward(x.to(type)); });
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    });
  }
}

TEST(ZeroGradOfTheNet, ClearsTheGradientsOfZero2) {
  const auto expected = trained_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), kMomentum, group, {.gradients = true});
    train_clearing_the_net(
        group, net, optimizer, [&](const torch::Tensor& x) { return net->forward(x); });
    EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
  });
}

// Two backwards without it add up, also where a third was thrown away before them.
template <class Forward, class Sharded>
void accumulate(ProcessGroup& group,
                torch::nn::Sequential& net,
                torch::optim::Optimizer& optimizer,
                Sharded& sharded,
                const Forward& forward) {
  at::set_num_threads(1);
  const auto backward = [&](int64_t of_step) {
    const auto batch = mlp_batch(of_step).of(group.rank(), group.size());
    sharded_loss(forward(batch.x), batch.y).backward();
  };
  backward(7);
  net->zero_grad();
  {
    const auto local = sharded.no_sync();
    backward(8);
    net->zero_grad();
    backward(0);
  }
  backward(1);
  backward(2);
  optimizer.step();
}

std::vector<torch::Tensor> accumulated_alone() {
  at::set_num_threads(1);
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), kMomentum);
  for (const int64_t step : {0, 1, 2}) {
    const auto batch = mlp_batch(step);
    sharded_loss(net->forward(batch.x), batch.y).backward();
  }
  optimizer.step();
  return values_of(*net);
}

TEST(ZeroGradOfTheNet, LeavesWhatIsToAddUp) {
  const auto expected = accumulated_alone();
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp(), second = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    SGD optimizer(sharded.parameters(), kMomentum);
    accumulate(
        group, net, optimizer, sharded, [&](const torch::Tensor& x) { return model.forward(x); });
    {
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    }
    ShardedOptimizer<SGD> zero(second->parameters(), kMomentum, group, {.gradients = true});
    accumulate(
        group, second, zero, zero, [&](const torch::Tensor& x) { return second->forward(x); });
    EXPECT_LE(farthest_apart(expected, second->parameters()), 2e-6);
  });
}

// A norm of the parts is taken after it too.
TEST(ZeroGradOfTheNet, CountsBeforeTheNextBackward) {
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp(), second = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    ShardedOptimizer<SGD> zero(second->parameters(), kMomentum, group, {.gradients = true});
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    sharded_loss(model.forward(batch.x), batch.y).backward();
    sharded_loss(second->forward(batch.x), batch.y).backward();
    EXPECT_GT(sharded.clip_grad_norm(1e9).item<float>(), 0);
    EXPECT_GT(zero.clip_grad_norm(1e9).item<float>(), 0);
    net->zero_grad();
    second->zero_grad();
    EXPECT_EQ(sharded.clip_grad_norm(1e9).item<float>(), 0);
    EXPECT_EQ(zero.clip_grad_norm(1e9).item<float>(), 0);
  });
}

TEST(ZeroGradOfTheNet, ThatKeepsZerosIsRefused) {
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    sharded_loss(model.forward(batch.x), batch.y).backward();
    EXPECT_THAT(failure_text([&] { net->zero_grad(/*set_to_none=*/false); }),
                HasSubstr("clear with zero_grad() without an argument"));
  });
}

TEST(OptimizerOfTheNetsParameters, IsRefusedInItsFirstStep) {
  const auto step_of = [](auto&& optimizer, auto&& model, ProcessGroup& group) {
    return failure_text([&] {
      for (int64_t step = 0; step < 2; ++step) {
        const auto batch = mlp_batch(step).of(group.rank(), group.size());
        optimizer.zero_grad();
        sharded_loss(model.forward(batch.x), batch.y).backward();
        optimizer.step();
      }
    });
  };
  run_ranks(2, [&](ProcessGroup& group) {
    for (const bool adam : {false, true}) {
      // Its decay writes to the weights before it looks at a gradient.
      if (adam && !can_refuse_for_a_while<c10::StorageImpl>())
        continue;
      FullySharded sharded(group);
      auto net = sharded_mlp();
      LayeredMlpImpl model(net, sharded);
      const std::string text = adam ? step_of(torch::optim::AdamW(net->parameters()), model, group)
                                    : step_of(SGD(net->parameters(), 0.1), model, group);
      EXPECT_THAT(text, HasSubstr("sharded.parameters()"));
    }
    FullySharded sharded(group);
    auto net = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    EXPECT_THAT(step_of(optim::SGD(net->parameters(), 0.1), model, group),
                HasSubstr("sharded.parameters()"));
  });
}

// The parts have none of these gradients, so the step would train nothing, or less than was asked
// for.
TEST(StepsOnNoSync, AreAnErrorOfAFullyShardedModel) {
  const auto expected = accumulated_alone();
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    run_ranks(2, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      FullySharded sharded(group, {.compute_dtype = type});
      auto net = sharded_mlp();
      LayeredMlpImpl model(net, sharded);
      SGD optimizer(sharded.parameters(), kMomentum);
      const auto backward = [&](int64_t of_step, bool local) {
        const auto batch = mlp_batch(of_step).of(group.rank(), group.size());
        const auto guard = local ? sharded.no_sync() : nullptr;
        sharded_loss(model.forward(batch.x.to(type)), batch.y).backward();
      };
      const auto expect_refused = [&] {
        const auto names_it = HasSubstr("after a backward inside no_sync()");
        EXPECT_THAT(failure_text([&] { optimizer.step(); }), names_it);
        EXPECT_THAT(failure_text([&] { sharded.clip_grad_norm(1.0); }), names_it);
      };
      backward(7, true);
      expect_refused();
      net->zero_grad();
      EXPECT_EQ(sharded.clip_grad_norm(1e9).item<float>(), 0);  // dropped: nothing is left out

      // What was reduced before is there again when the rest is.
      backward(0, false);
      backward(1, true);
      {
        const torch::NoGradGuard evaluates;
        model.forward(mlp_batch(0).x.to(type));
      }
      expect_refused();
      backward(2, false);
      optimizer.step();
      const auto whole = sharded.whole_parameters();
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    });
  }
}

TEST(NormOfTheNetsParameters, IsRefused) {
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp(), second = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    ShardedOptimizer<SGD> zero(second->parameters(), kMomentum, group, {.gradients = true});
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    sharded_loss(model.forward(batch.x), batch.y).backward();
    sharded_loss(second->forward(batch.x), batch.y).backward();
    for (const auto& parameters : {net->parameters(), second->parameters()}) {
      EXPECT_THAT(failure_text([&] { clip_grad_norm(parameters, 1.0); }),
                  HasSubstr("got sharded gradients"));
      EXPECT_THAT(failure_text([&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0); }),
                  HasSubstr("clip_grad_norm"));
    }
  });
}

TEST(NormOfTheNetsParameters, IsTakenOnceNobodyDividesTheirGradients) {
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    {
      ShardedOptimizer<SGD> zero(net->parameters(), kMomentum, group, {.gradients = true});
      sharded_loss(net->forward(batch.x), batch.y).backward();
    }
    sharded_loss(net->forward(batch.x), batch.y).backward();
    EXPECT_GT(clip_grad_norm(net->parameters(), 1e9).item<float>(), 0);
  });
}

// As a regularizer of one's own does.
TEST(ReadingAWeightAfterItsForward, IsRefused) {
  if (!can_refuse_for_a_while<c10::StorageImpl>())
    GTEST_SKIP() << "this LibTorch cannot be told to refuse it";
  run_ranks(1, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    const auto loss = model.forward(mlp_batch(0).x).sum();
    EXPECT_THAT(failure_text([&] { net->parameters()[0].sum().item<float>(); }),
                HasSubstr("whole_parameters()"));
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(failure_text([&] { net->parameters()[0].fill_(1); }),
                HasSubstr("whole_parameters()"));
  });
}

// Two places with one weight, which LibTorch's net->parameters() has twice.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    weight = register_parameter("first", torch::linspace(-1, 1.2, 16).view({4, 4}));
    register_parameter("second", weight);
    bias = register_parameter("bias", torch::linspace(-0.5, 0.7, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::linear(torch::tanh(torch::linear(x, weight)), weight, bias);
  }
  torch::Tensor weight, bias;
};

template <class Forward>
void train_twice(torch::optim::Optimizer& optimizer, int rank, int ranks, const Forward& forward) {
  for (int64_t step = 0; step < kPlainSteps; ++step) {
    const auto x = mlp_batch(step).x.slice(1, 0, 4).chunk(ranks)[rank];
    optimizer.zero_grad();
    forward(x).square().mean().backward();
    optimizer.step();
  }
}

TEST(SharedWeights, AShardedOptimizerStepsOnceOnEach) {
  at::set_num_threads(1);
  auto alone = std::make_shared<TwiceImpl>();
  ASSERT_EQ(alone->parameters().size(), 3);
  SGD plain(distinct_parameters(*alone), kMomentum);
  train_twice(plain, 0, 1, [&](const torch::Tensor& x) { return alone->forward(x); });
  for (const bool gradients : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      auto net = std::make_shared<TwiceImpl>();
      std::optional<DistributedDataParallel<std::shared_ptr<TwiceImpl>>> wrapped;
      if (!gradients)
        wrapped.emplace(net, group);
      ShardedOptimizer<SGD> optimizer(
          net->parameters(), kMomentum, group, {.gradients = gradients});
      train_twice(optimizer, group.rank(), 2, [&](const torch::Tensor& x) {
        return wrapped ? (*wrapped)(x) : net->forward(x);
      });
      EXPECT_LE(farthest_apart(values_of(*alone), net->parameters()), 2e-6) << gradients;
    });
  }
}

TEST(SharedWeights, AFullyShardedModelHasOneWeightOfEach) {
  at::set_num_threads(1);
  auto alone = std::make_shared<TwiceImpl>();
  torch::optim::AdamW plain(distinct_parameters(*alone), 0.01);
  train_twice(plain, 0, 1, [&](const torch::Tensor& x) { return alone->forward(x); });
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = std::make_shared<TwiceImpl>();
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    torch::optim::AdamW optimizer(sharded.parameters(), 0.01);
    train_twice(optimizer, group.rank(), 2, [&](const torch::Tensor& x) { return model(x); });
    const auto whole = sharded.whole_parameters();
    EXPECT_LE(farthest_apart(values_of(*alone), net->parameters()), 2e-6);
  });
}

TEST(SharedWeights, GroupsOfAFullyShardedModelHaveOneOfEach) {
  at::set_num_threads(1);
  auto alone = std::make_shared<TwiceImpl>();
  SGD plain(distinct_parameters(*alone), kMomentum);
  train_twice(plain, 0, 1, [&](const torch::Tensor& x) { return alone->forward(x); });
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = std::make_shared<TwiceImpl>();
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    const std::vector<torch::optim::OptimizerParamGroup> groups{{net->parameters()}};
    SGD optimizer(sharded.parameters(groups), kMomentum);
    train_twice(optimizer, group.rank(), 2, [&](const torch::Tensor& x) { return model(x); });
    EXPECT_THAT(failure_text([&] { sharded.parameters({groups[0], groups[0]}); }),
                HasSubstr("fully sharded: expected each parameter in one group, got one of shape "
                          "[4, 4] in two (rank "));
    const auto whole = sharded.whole_parameters();
    EXPECT_LE(farthest_apart(values_of(*alone), net->parameters()), 2e-6);
  });
}

// Parts have one dimension, as biases have, so no weight would decay.
TEST(GroupsOfParts, AreAnError) {
  const auto options = torch::optim::AdamWOptions(1e-3).weight_decay(0.1);
  run_ranks(2, [&](ProcessGroup& group) {
    FullySharded sharded(group);
    auto net = sharded_mlp();
    LayeredMlpImpl model(net, sharded);
    EXPECT_THAT(
        failure_text([&] { optim::groups_by_decay(sharded.parameters(), options); }),
        ::testing::AllOf(HasSubstr("groups_by_decay: expected the whole parameters of a model, got "
                                   "a rank's part of "),
                         HasSubstr("pass sharded.parameters(groups)")));
    EXPECT_THAT(failure_text([&] { optim::groups_by_layer({sharded.parameters()}, options, 0.5); }),
                HasSubstr("groups_by_layer: expected the whole parameters"));
    const auto groups = sharded.parameters(optim::groups_by_decay(net->parameters(), options));
    EXPECT_EQ(groups.size(), 2U);
  });
}

TEST(GroupsOfParts, MayBeMadeOfAModelThatZero2Trains) {
  const auto options = torch::optim::AdamWOptions(1e-3).weight_decay(0.1);
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<torch::optim::AdamW> optimizer(
        optim::groups_by_decay(net->parameters(), options), options, group, {.gradients = true});
    EXPECT_EQ(optim::groups_by_decay(net->parameters(), options).size(), 2U);
    const auto& parts = optimizer.part().param_groups()[0].params();
    EXPECT_THAT(failure_text([&] { optim::groups_by_decay(parts, options); }),
                HasSubstr("a rank's part"));
  });
}

}  // namespace
}  // namespace muster::testing
