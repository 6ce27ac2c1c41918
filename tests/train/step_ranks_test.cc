// TrainStep with what DistributedDataParallel has besides: ignored parameters, join(), hooks that
// remember.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <limits>
#include <memory>

#include "muster/base/strings.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/train/step.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The norm of the shared gradients is every rank's; an ignored gradient, each rank's own, has one
// for itself.
TEST(TrainStepOverRanks, IgnoredParametersAreClippedByTheirOwnNorm) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"fc1.weight"}});
    torch::optim::SGD optimizer(model.parameters(), 1);
    constexpr double kMost = 0.01;
    TrainStep step(model, optimizer, {.clip_norm = kMost});
    for (int i = 0; i < 5; ++i) {
      const auto own = net->fc1->weight.detach().clone(),
                 shared = net->fc2->weight.detach().clone();
      const auto biases = torch::cat({net->fc1->bias, net->fc2->bias}).detach();
      const auto data =
          fixed_data(4, static_cast<uint64_t>(10 * i + group.rank())) * (1 + 10 * group.rank());
      step(OneBatch{}, [&] { return model(data).square().mean(); });
      const auto change = (torch::cat({net->fc1->bias, net->fc2->bias}) - biases).square().sum() +
                          (net->fc2->weight - shared).square().sum();
      EXPECT_NEAR(change.sqrt().item<double>(), kMost, 1e-4 * kMost);
      EXPECT_NEAR((net->fc1->weight - own).norm().item<double>(), kMost, 1e-4 * kMost);
    }
    const auto most = net->fc2->weight.detach().clone(), norm = step.grad_norm().clone();
    const auto all = group.all_gather_bytes(cat(numbers_of(most)[0], " ", norm.item<double>()));
    EXPECT_EQ(all[0], all[1]);
    group.all_reduce(most, ReduceOp::max);
    EXPECT_TRUE(most.equal(net->fc2->weight));
  });
}

TEST(TrainStepOverRanks, AnIgnoredGradientThatIsNotFiniteStopsAllRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"fc1.weight"}});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    TrainStep step(model, optimizer, {.clip_norm = 1, .on_nonfinite = OnNonfinite::skip});
    net->fc1->weight.register_hook(
        [&](const at::Tensor& gradient) { return group.rank() == 1 ? gradient / 0 : gradient; });
    step(OneBatch{}, [&] { return model(fixed_data(2)).square().mean(); });
    EXPECT_EQ(step.skipped(), 1);
  });
}

// Ranks whose gradients are averaged find the same in them, and need not ask each other. Where they
// are not averaged they do.
TEST(TrainStepOverRanks, GradientsThatStayLocalAreAskedFor) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    TrainStep trusting(model, optimizer, {.on_nonfinite = OnNonfinite::ignore});
    TrainStep step(model, optimizer, {.on_nonfinite = OnNonfinite::skip});
    const auto loss = [&] {
      return model(fixed_data(2)).square().mean();
    };
    const double bad_on_rank_1 = group.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
    const auto train = [&](double factor) {
      step(OneBatch{}, [&] { return loss() * factor; });
    };
    const auto calls_of = [&](TrainStep& one) {
      const auto before = group.traffic().calls;
      one(OneBatch{}, loss);
      return group.traffic().calls - before;
    };
    EXPECT_EQ(calls_of(step), calls_of(trusting));
    train(bad_on_rank_1);
    EXPECT_EQ(step.skipped(), 1);
    const auto local = model.no_sync();
    train(bad_on_rank_1);
    EXPECT_EQ(step.skipped(), 2);
  });
}

// Ranks without inputs would not come to the question whether all gradients are finite.
TEST(TrainStepOverRanks, InsideOfJoinIsRefusedAtItsFirstStep) {
  for (const int inputs_of_rank_0 : {0, 2}) {
    for (const bool half : {false, true}) {
      const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
        DistributedDataParallel model(seeded_layers()->fc1, group);
        Precision precision(at::kCPU, half ? "fp16" : "fp32");
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        TrainStep step(model,
                       optimizer,
                       {.precision = &precision,
                        .on_nonfinite = half ? OnNonfinite::ignore : OnNonfinite::stop});
        const int inputs = group.rank() == 0 ? inputs_of_rank_0 : 5;
        model.join([&] {
          for (int i = 0; i < inputs; ++i)
            step(OneBatch{}, [&] { return model(fixed_data(2)).square().mean(); });
        });
      });
      EXPECT_THAT(message_of(failures[1]),
                  HasSubstr("train step: expected to be outside of join(), "));
      EXPECT_THAT(message_of(failures[1]), HasSubstr("rank 1"));
      const std::string way_out = ", or set .on_nonfinite = muster::OnNonfinite::ignore";
      EXPECT_EQ(message_of(failures[1]).ends_with(way_out), !half);
      EXPECT_NE(message_of(failures[0]), "");
    }
  }
}

// What would not help a SummedLoss is not said to it.
TEST(TrainStepOverRanks, ASummedLossInsideOfJoinIsToldItsOwnWayOut) {
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(seeded_layers()->fc1, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    TrainStep step(model, optimizer);
    model.join([&] {
      step(OneBatch{}, [&] {
        const auto losses = model(fixed_data(2)).square();
        return SummedLoss{.sum = losses.sum(), .count = torch::tensor(losses.numel())};
      });
    });
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("outside of join() with a SummedLoss, as ranks without inputs"),
                      HasSubstr("set .stop_together of join()"),
                      Not(HasSubstr("on_nonfinite"))));
}

TEST(TrainStepOverRanks, InsideOfJoinGoesWhereNobodyIsAsked) {
  for (const bool together : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      auto net = seeded_layers();
      DistributedDataParallel model(net, group);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      TrainStep step(
          model, optimizer, {.on_nonfinite = together ? OnNonfinite::stop : OnNonfinite::ignore});
      const auto result = model.join(
          [&] {
            for (int i = 0; i < 2 + group.rank(); ++i)
              step(OneBatch{}, [&] { return model(fixed_data(2)).square().mean(); });
          },
          {.stop_together = together});
      EXPECT_EQ(result.stopped, together);
      EXPECT_EQ(step.steps(), together ? 2 : 2 + group.rank());
    });
  }
}

// A step that is left out costs that step, not what hooks have kept for later ones.
TEST(TrainStepOverRanks, AStepThatIsLeftOutLeavesHooksAsTheyWere) {
  for (const bool power : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      const Hook hook = power ? power_sgd({.start_step = 0, .min_compression_rate = 0.1})
                              : top_k({.density = 0.2});
      auto net = seeded_layers();
      DistributedDataParallel model(net, group, {.bucket_cap_mb = 0.0001, .hook = hook});
      torch::optim::SGD optimizer(model.parameters(), 0.01);
      TrainStep step(model, optimizer, {.on_nonfinite = OnNonfinite::skip});
      HookState before;
      for (int i = 0; i < 8; ++i) {
        const bool bad = i == 4;
        if (bad)
          before = hook.state();
        const auto data = fixed_data(4, static_cast<uint64_t>(10 * i + group.rank()));
        // A gradient that is not finite in one parameter of one rank.
        const auto factor =
            bad && group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
        step(OneBatch{},
             [&] { return model(data).square().mean() + factor * net->fc2->bias.sum(); });
        if (!bad)
          continue;
        const HookState after = hook.state();
        ASSERT_FALSE(before.own.empty());
        for (const auto& [name, error] : before.own)
          EXPECT_TRUE(error.equal(after.own.at(name))) << name;
        for (const auto& [name, q] : before.tensors)
          EXPECT_TRUE(q.equal(after.tensors.at(name))) << name;
      }
      EXPECT_EQ(step.skipped(), 1);
      EXPECT_EQ(step.steps(), 7);
    });
  }
}

// What a hook keeps is in units of the loss scale of its step: over a scale that halves, all of a
// gradient arrives.
TEST(TrainStepOverRanks, HooksFollowTheLossScale) {
  run_ranks(2, [](ProcessGroup& group) {
    auto weight = torch::zeros({4}).requires_grad_(true);
    struct Net : torch::nn::Module {
      explicit Net(const at::Tensor& weight) { w = register_parameter("w", weight); }
      at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
      at::Tensor w;
    };
    auto net = std::make_shared<Net>(weight);
    DistributedDataParallel model(net, group, {.hook = top_k({.density = 0.25})});
    torch::optim::SGD optimizer(model.parameters(), 1);
    Precision precision(at::kCPU, {.type = "fp16", .init_scale = 1024});
    TrainStep step(model, optimizer, {.precision = &precision});
    const auto gradient = torch::tensor({4.F, 3.F, 2.F, 1.F});
    for (int i = 0; i < 5; ++i) {
      const double factor = i == 0 ? 1 : i == 1 ? INFINITY : 0;  // the second halves the scale
      step(OneBatch{}, [&] { return model(gradient * factor); });
    }
    EXPECT_EQ(precision.scale_value(), 512);
    EXPECT_EQ(step.skipped(), 1);
    EXPECT_TRUE(net->w.equal(-gradient)) << net->w;
  });
}

// Ten steps, or five and five more by other objects.
TEST(TrainStepOverRanks, CheckpointsHaveWhatHooksRemember) {
  for (const bool power : {false, true}) {
    const test::TempFolder folder;
    run_ranks(2, [&](ProcessGroup& group) {
      struct Training {
        Training(ProcessGroup& group, bool power, const std::string& folder, bool resume)
            : net(torch::nn::Linear(32, 64), torch::nn::Linear(64, 16)),
              hook(power ? power_sgd({.start_step = 2}) : top_k({.density = 0.1})),
              checkpoints(group, {.folder = folder, .resume = resume}) {
          for (auto& one : net->parameters())
            one.data().copy_(torch::linspace(-0.1, 0.1, one.numel()).view_as(one));
          optimizer = std::make_unique<torch::optim::SGD>(
              net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
          checkpoints.add("model", net).add("optimizer", *optimizer).add("hook", hook);
          checkpoints.restore();
        }
        std::vector<double> run(ProcessGroup& group, int from, int until) {
          DistributedDataParallel model(net, group, {.hook = hook});
          TrainStep step(model, *optimizer);
          for (int i = from; i < until; ++i) {
            const auto data = torch::randn(
                {4, 32},
                at::detail::createCPUGenerator(static_cast<uint64_t>(10 * i + group.rank())));
            step(OneBatch{}, [&] { return model(data).square().mean(); });
          }
          return weights_of(*net);
        }
        torch::nn::Sequential net;
        Hook hook;
        Checkpoints checkpoints;
        std::unique_ptr<torch::optim::SGD> optimizer;
      };
      const auto whole = Training(group, power, folder / "none", false).run(group, 0, 10);
      Training first(group, power, folder / "saved", false);
      const auto half = first.run(group, 0, 5);
      first.checkpoints.save(5);
      Training second(group, power, folder / "saved", true);
      EXPECT_EQ(weights_of(*second.net), half);
      const auto before = first.hook.state(), after = second.hook.state();
      EXPECT_EQ(before.numbers, after.numbers);
      ASSERT_FALSE(before.own.empty());
      for (const auto& [name, error] : before.own)
        EXPECT_TRUE(error.equal(after.own.at(name))) << name;
      for (const auto& [name, q] : before.tensors)
        EXPECT_TRUE(q.equal(after.tensors.at(name))) << name;
      EXPECT_EQ(second.run(group, 5, 10), whole);
    });
    // With another number of ranks the matrices are there, and errors begin anew.
    run_ranks(1, [&](ProcessGroup& group) {
      torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::Linear(64, 16));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      const Hook hook = power ? power_sgd({.start_step = 2}) : top_k({.density = 0.1});
      Checkpoints checkpoints(group, {.folder = folder / "saved", .resume = true});
      checkpoints.add("model", net).add("optimizer", optimizer).add("hook", hook);
      EXPECT_TRUE(checkpoints.restore());
      EXPECT_TRUE(hook.state().own.empty());
      EXPECT_EQ(hook.state().tensors.empty(), !power);
    });
  }
}

// The gradients of a model's micro-batch would be each rank's own.
TEST(TrainStepOverRanks, AModelThatTheLastMicroBatchLeavesOutIsNamed) {
  run_ranks(2, [](ProcessGroup& group) {
    auto first = seeded_layers(1), second = seeded_layers(2);
    DistributedDataParallel a(first, group), b(second, group);
    torch::optim::SGD optimizer_a(a.parameters(), 0.1), optimizer_b(b.parameters(), 0.1);
    TrainStep step({a, b}, {&optimizer_a, &optimizer_b});
    const auto loss_of = [&](bool with_b) {
      const auto data = fixed_data(4, static_cast<uint64_t>(group.rank()));
      const at::Tensor loss = a(data).square().mean();
      return with_b ? loss + b(data).square().mean() : loss;
    };
    step.run(0.5, false, [&] { return loss_of(true); });
    const std::string said = [&] {
      try {
        step.run(0.5, true, [&] { return loss_of(false); });
      } catch (const Error& error) {
        return error.message();
      }
      return std::string();
    }();
    EXPECT_THAT(said, HasSubstr("got none through model 2"));
    step.run(0.5, false, [&] { return loss_of(false); });
    step.run(0.5, true, [&] { return loss_of(true); });
    EXPECT_EQ(step.steps(), 1);
  });
}

// As a Plateau of each rank's own loss makes them.
TEST(TrainStepOverRanks, RatesThatDifferAreNamedOnAllRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = seeded_layers();
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    TrainStep step(model, optimizer);
    const auto train = [&] {
      step(OneBatch{}, [&] { return model(fixed_data(2)).square().mean(); });
    };
    for (int i = 0; i < 100; ++i)
      train();
    optimizer.param_groups()[0].options().set_lr(group.rank() == 0 ? 0.1 : 0.05);
    std::string said;
    try {
      train();
    } catch (const Error& error) {
      said = error.message();
    }
    EXPECT_THAT(said, HasSubstr("got 0.1 on rank 0 and 0.05 on rank 1"));
    EXPECT_EQ(step.steps(), 100);
  });
}

}  // namespace
}  // namespace muster::testing
