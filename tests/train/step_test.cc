#include "muster/train/step.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <memory>

#include "muster/checkpoint/training/resumed_training.h"
#include "muster/data/loader.h"
#include "muster/trace/activity.h"
#include "muster/trace/read_activity.h"
#include "muster/train/clip.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"
#include "tests/train/two_layers.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

// Sums of parts are rounded otherwise than the sum of all.
constexpr double kDoubleRounding = 1e-11;

TEST(TrainStep, IsThePlainLoopBitForBit) {
  const auto data = fixed_data(32);
  const auto plain = [&] {
    auto net = seeded_layers();
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    Schedule schedule(optimizer, rate::cosine({.steps = 20, .warmup = 3}));
    Ema ema(*net, 0.9);
    for (int step = 0; step < 12; ++step) {
      optimizer.zero_grad();
      net(data).square().mean().backward();
      clip_grad_norm(net->parameters(), 0.05);
      optimizer.step();
      schedule.step();
      ema.update();
    }
    auto weights = weights_of(*net);
    for (const auto& [name, average] : ema.averages()) {
      const auto numbers = numbers_of(average);
      weights.insert(weights.end(), numbers.begin(), numbers.end());
    }
    return weights;
  }();
  auto net = seeded_layers();
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  Schedule schedule(optimizer, rate::cosine({.steps = 20, .warmup = 3}));
  Ema ema(*net, 0.9);
  TrainStep step(net, optimizer, {.clip_norm = 0.05, .schedule = &schedule, .ema = &ema});
  for (int i = 0; i < 12; ++i) {
    const auto loss = step(OneBatch{}, [&] { return net(data).square().mean(); });
    EXPECT_FALSE(loss.requires_grad());
    EXPECT_GT(step.grad_norm().item<double>(), 0);
  }
  EXPECT_EQ(step.steps(), 12);
  EXPECT_EQ(schedule.steps(), 12);
  TrainStep resumed(net, optimizer);
  resumed.load_state(step.state());
  EXPECT_EQ(resumed.steps(), 12);
  auto weights = weights_of(*net);
  for (const auto& [name, average] : ema.averages()) {
    const auto numbers = numbers_of(average);
    weights.insert(weights.end(), numbers.begin(), numbers.end());
  }
  EXPECT_EQ(weights, plain);
}

// Whether or not the step's own state was saved.
TEST(TrainStep, ShowsTheStepsOfTheWholeTrainingAfterAResume) {
  const test::TempFolder folder;
  Activity activity(folder / "activity", {});
  Activity::set(&activity);
  const auto data = fixed_data(32);
  auto net = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const auto shown_after = [&](TrainStep& step) {
    step(OneBatch{}, [&] { return net(data).square().mean(); });
    return read_activity(activity.path()).step;
  };
  ResumedTraining::of_process().note(100, 7);
  TrainStep without(net, optimizer);
  EXPECT_EQ(shown_after(without), 101);
  EXPECT_EQ(shown_after(without), 102);
  EXPECT_EQ(without.steps(), 2);
  TrainStep with(net, optimizer);
  with.load_state({.numbers = {{"steps", 99}, {"skipped", 1}}});  // one of the 100 was left out
  EXPECT_EQ(shown_after(with), 100);
  EXPECT_EQ(with.steps(), 100);
  ResumedTraining::of_process().note(0, 8);
  TrainStep again(net, optimizer);
  EXPECT_EQ(shown_after(again), 1);
  Activity::set(nullptr);
  EXPECT_GT(*read_activity(activity.path()).loss, 0);
}

// 23 samples for 2 ranks in batches of 3, 2 batches a step: the last step has one batch of 3, and
// shares differ.
TEST(TrainStep, UnevenAccumulationIsTheJoinedBatch) {
  const auto data = fixed_data(34);
  const TensorDataset dataset(data, torch::arange(34));
  std::vector<std::vector<int64_t>> joined;  // samples of each step
  std::vector<double> weights;
  std::mutex mutex;
  run_ranks(2, [&](ProcessGroup& group) {
    TwoLayers net = [] {
      static std::mutex seeding;
      const std::lock_guard lock(seeding);
      return seeded_layers();
    }();
    DistributedDataParallel model(net, group);
    torch::optim::Adam optimizer(model.parameters(), 0.01);
    TrainStep step(model, optimizer, {.clip_norm = 0.5});
    DistributedSampler sampler(
        34, {.num_replicas = 2, .rank = group.rank(), .shuffle = true, .seed = 3});
    DataLoader loader(dataset, sampler, {.batch_size = 3, .accumulate = 4});
    size_t number = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      for (const auto& batch : loader) {
        const auto labels = numbers_of(batch.labels);
        {
          const std::lock_guard lock(mutex);
          if (joined.size() <= number)
            joined.resize(number + 1);
          joined[number].insert(joined[number].end(), labels.begin(), labels.end());
        }
        step(batch, [&] { return model(batch.features).square().mean(); });
        if (batch.last)
          ++number;
      }
    }
    if (group.rank() == 0)
      weights = weights_of(*net);
  });
  auto net = seeded_layers();
  torch::optim::Adam optimizer(net->parameters(), 0.01);
  TrainStep step(net, optimizer, {.clip_norm = 0.5});
  for (const auto& samples : joined) {
    const auto rows = data.index_select(0, torch::tensor(samples));
    step(OneBatch{}, [&] { return net(rows).square().mean(); });
  }
  const double difference = largest_difference(weights, weights_of(*net));
  std::cout << "  " << joined.size() << " steps of " << joined[0].size() << " and "
            << joined[1].size() << " samples, 2 ranks against one: largest difference "
            << difference << " (bound " << kDoubleRounding << ")\n";
  EXPECT_EQ(joined[0].size(), 24U);
  EXPECT_EQ(joined[1].size(), 10U);
  EXPECT_LE(difference, kDoubleRounding);
}

TEST(TrainStep, SeveralOptimizersAreOneStep) {
  auto net = seeded_layers(), other = seeded_layers();
  const auto data = fixed_data(16);
  torch::optim::SGD first(net->fc1->parameters(), 0.1), other_first(other->fc1->parameters(), 0.1);
  torch::optim::Adam second(net->fc2->parameters(), 0.01),
      other_second(other->fc2->parameters(), 0.01);
  TrainStep step(net, {&first, &second}, {.clip_norm = 0.1});
  for (int i = 0; i < 5; ++i) {
    step.run(1, true, [&] { return net(data).square().mean(); });
    other->zero_grad();
    other(data).square().mean().backward();
    clip_grad_norm(other->parameters(), 0.1);
    other_first.step();
    other_second.step();
  }
  EXPECT_EQ(weights_of(*net), weights_of(*other));
}

TEST(TrainStep, AnOptimizerThatCallsTheLossIsRefused) {
  auto net = seeded_layers();
  torch::optim::LBFGS optimizer(net->parameters());
  EXPECT_THAT(message_of_error([&] { TrainStep(net, optimizer, {}); }), HasSubstr("got LBFGS"));
}

TEST(TrainStep, AStepThatIsNotFiniteIsLeftOutOnAllRanks) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(1);
    }
    for (const bool clips : {false, true}) {
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      Schedule schedule(optimizer, rate::exponential(0.5));
      // Not wrapped: each rank has its own gradients, and they must agree all the same.
      TrainStepOptions options{.schedule = &schedule,
                               .on_nonfinite = OnNonfinite::skip,
                               .group = group,
                               .unreduced = true};
      if (clips)
        options.clip_norm = 1000;
      TrainStep step(net, optimizer, options);
      const auto before = weights_of(*net);
      const auto bad = [&] {
        return net(torch::full({1, 2}, group.rank() == 1 ? INFINITY : 1.0F)).sum();
      };
      step(OneBatch{}, bad);
      EXPECT_EQ(weights_of(*net), before);
      EXPECT_EQ(step.skipped(), 1);
      EXPECT_EQ(schedule.lr(), 0.1) << "a step that was not";
      step(OneBatch{}, [&] { return net(torch::ones({1, 2})).sum(); });
      EXPECT_NE(weights_of(*net), before);
      EXPECT_EQ(schedule.lr(), 0.05);
    }
  });
}

TEST(TrainStep, StopNamesTheParameters) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(TwoLayers(), group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    const double scale = 1e300;
    TrainStep step(model, optimizer, {.clip_value = 1.0});
    const auto before = weights_of(*model.module());
    step(OneBatch{}, [&] { return model(fixed_data(2)).sum(); });
    EXPECT_NE(weights_of(*model.module()), before);
    const auto again = weights_of(*model.module());
    try {
      step(OneBatch{}, [&] { return model(fixed_data(2)).sum() * scale * scale; });
    } catch (...) {
      EXPECT_EQ(weights_of(*model.module()), again);
      throw;
    }
  });
  for (const auto& failure : failures) {
    EXPECT_THAT(message_of(failure),
                HasSubstr("train step: expected finite gradients, got NaN or an infinity in "
                          "fc1.weight, fc1.bias, fc2.weight and 1 more (rank "));
    EXPECT_THAT(message_of(failure), HasSubstr(", step 2); lower the learning rate"));
  }
}

TEST(TrainStep, HalfPrecisionWithAccumulationOverRanks) {
  std::vector<double> scales;
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel model(torch::nn::Linear(2, 1), group);
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    Precision precision(at::kCPU, {.type = "fp16", .init_scale = 1024, .growth_interval = 3});
    TrainStep step(model, optimizer, {.precision = &precision, .clip_norm = 1.0});
    for (int i = 0; i < 10; ++i) {
      const float input = i == 4 && group.rank() == 1 ? 60000.F * 10 : 0.5F;  // too large for fp16
      for (const bool last : {false, true})
        step(OneBatch{0.5, last},
             [&] { return model(torch::full({3, 2}, input)).square().mean(); });
      if (group.rank() == 0)
        scales.push_back(precision.scale_value());
    }
    EXPECT_EQ(step.steps(), 9);
    EXPECT_EQ(step.skipped(), 1);
  });
  EXPECT_EQ(scales,
            (std::vector<double>{1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048, 2048, 2048}));
}

// Without a floor the scale would become 0, gradients with it, and the next good step NaN.
TEST(TrainStep, BadStepsAtTheSmallestScaleAreAnError) {
  for (const OnNonfinite what_then : {OnNonfinite::stop, OnNonfinite::skip, OnNonfinite::ignore}) {
    run_ranks(2, [&](ProcessGroup& group) {
      DistributedDataParallel model(torch::nn::Linear(2, 1), group);
      torch::optim::SGD optimizer(model.parameters(), 0.01);
      Precision precision(at::kCPU, "fp16");
      TrainStep step(model, optimizer, {.precision = &precision, .on_nonfinite = what_then});
      const auto train_one = [&](float input) {
        step(OneBatch{}, [&] { return model(torch::full({3, 2}, input)).square().mean(); });
      };
      int refused = 0;
      for (int i = 0; i < 200; ++i) {
        const std::string said =
            message_of_error([&] { train_one(group.rank() == 1 ? NAN : 0.5F); });
        if (said == "no error")
          continue;
        EXPECT_THAT(said, HasSubstr("expected finite gradients"));
        EXPECT_THAT(said, HasSubstr("a loss scale of 1 does not help"));
        ++refused;
      }
      EXPECT_EQ(step.skipped(), 16);
      EXPECT_EQ(refused, 200 - 16);
      const auto before = weights_of(*model.module());
      train_one(0.5F);
      EXPECT_NE(weights_of(*model.module()), before);
      EXPECT_TRUE(model.module()->weight.isfinite().all().item<bool>());
    });
  }
}

TEST(TrainStep, ComplexParametersAreCheckedToo) {
  torch::nn::Module net;
  const auto weight = net.register_parameter("weight", torch::ones({2}, torch::kComplexFloat));
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  TrainStep step(net, optimizer, {.on_nonfinite = OnNonfinite::skip});
  step(OneBatch{}, [&] { return weight.abs().square().sum(); });
  step(OneBatch{}, [&] { return weight.abs().square().sum() * INFINITY; });
  EXPECT_EQ(step.steps(), 1);
  EXPECT_EQ(step.skipped(), 1);
}

// `.schedule = warmup ? &schedule : nullptr`.
TEST(TrainStep, PartsThatAreNullAreNotThere) {
  auto net = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  Schedule* none = nullptr;
  Ema ema(*net, 0.5);
  TrainStep step(net, {&optimizer, nullptr}, {.schedule = none, .ema = {nullptr, &ema}});
  step(OneBatch{}, [&] { return net(fixed_data(2)).square().mean(); });
  EXPECT_EQ(step.steps(), 1);
  EXPECT_EQ(ema.updates(), 1);
  EXPECT_TRUE(Several<Schedule>(nullptr).empty());
  EXPECT_EQ(Several<Schedule>(std::vector<Schedule*>{nullptr, none}).size(), 0U);
}

TEST(TrainStep, AnErrorInTheLossBeginsAnotherStep) {
  run_ranks(2, [](ProcessGroup& group) {
    DistributedDataParallel model(seeded_layers(), group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    TrainStep step(model, optimizer);
    const auto loss_of = [&] {
      return model(fixed_data(2)).square().mean();
    };
    step(OneBatch{0.5, false}, loss_of);
    EXPECT_THROW(
        step(OneBatch{0.5, false}, [&]() -> at::Tensor { throw std::runtime_error("user's"); }),
        std::runtime_error);
    EXPECT_FALSE(model.module()->fc1->weight.grad().defined());
    const auto before = weights_of(*model.module());
    step(OneBatch{}, loss_of);
    EXPECT_NE(weights_of(*model.module()), before);
    EXPECT_EQ(step.steps(), 1);
  });
}

TEST(TrainStep, WrongUseIsNamed) {
  auto net = seeded_layers(), critic = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.1), other(critic->parameters(), 0.1);
  EXPECT_THAT(message_of_error([&] { TrainStep(net, Several<torch::optim::Optimizer>()); }),
              HasSubstr("got none"));
  EXPECT_THAT(message_of_error([&] { TrainStep(net, optimizer, {.frozen = net}); }),
              HasSubstr("got 'fc1.weight' in both"));
  TrainStep step(net, optimizer);
  EXPECT_THAT(message_of_error([&] { step(OneBatch{}, [&] { return net(fixed_data(2)); }); }),
              HasSubstr("got a tensor of shape [2, 2]"));
  EXPECT_THAT(message_of_error([&] { step(OneBatch{}, [&] { return torch::ones({}); }); }),
              HasSubstr("got one that does not depend on parameters"));
  // Another step's loss goes through the model between two micro-batches.
  TrainStep critic_step(critic, other);
  step(OneBatch{0.5, false}, [&] { return net(fixed_data(2)).mean(); });
  critic_step(OneBatch{0.5, false},
              [&] { return critic(net(fixed_data(2)).repeat({1, 2})).mean(); });
  EXPECT_THAT(message_of_error(
                  [&] { step(OneBatch{0.5, true}, [&] { return net(fixed_data(2)).mean(); }); }),
              HasSubstr("expected the gradients that its last micro-batch left, got others (step "
                        "1); where another "
                        "step's loss goes through this model, name it in that step's .frozen"));
}

// The habit of a plain loop would take the earlier micro-batches' gradients.
TEST(TrainStep, GradientsThatTheLossClearsAreAnError) {
  for (const bool set_to_none : {true, false}) {
    auto net = seeded_layers();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainStep step(net, optimizer);
    const auto clears_first = [&] {
      optimizer.zero_grad(set_to_none);
      return net(fixed_data(2)).mean();
    };
    step(OneBatch{0.5, false}, clears_first);
    EXPECT_THAT(message_of_error([&] { step(OneBatch{0.5, true}, clears_first); }),
                HasSubstr("leave zero_grad to the step"));
    step(OneBatch{1, true}, clears_first);  // nothing was there
    EXPECT_EQ(step.steps(), 1);
  }
}

TEST(TrainStep, TwoStepsWithOneScaleAreAnError) {
  auto net = seeded_layers(), critic = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.1), other(critic->parameters(), 0.1);
  Precision precision(at::kCPU, "fp16");
  TrainStep step(net, optimizer, {.precision = &precision});
  TrainStep critic_step(critic, other, {.precision = &precision});
  step(OneBatch{0.5, false}, [&] { return net(fixed_data(2)).mean(); });
  critic_step(OneBatch{}, [&] { return critic(fixed_data(2)).mean(); });
  EXPECT_THAT(message_of_error(
                  [&] { step(OneBatch{0.5, true}, [&] { return net(fixed_data(2)).mean(); }); }),
              HasSubstr("give each TrainStep a Precision of its own"));
}

// As the loop that clears and clips through its optimizer.
TEST(TrainStep, ParametersThatTheOptimizerGetsLaterAreItsToo) {
  const auto data = fixed_data(32);
  const auto unfreeze = [](TwoLayers& net, torch::optim::SGD& optimizer) {
    for (at::Tensor& parameter : net->fc1->parameters())
      parameter.requires_grad_(true);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(net->fc1->parameters()));
  };
  const auto head_alone = [] {
    auto net = seeded_layers();
    for (at::Tensor& parameter : net->fc1->parameters())
      parameter.requires_grad_(false);
    return net;
  };
  const auto plain = [&] {
    auto net = head_alone();
    torch::optim::SGD optimizer(net->fc2->parameters(), 0.1);
    for (int step = 0; step < 10; ++step) {
      if (step == 4)
        unfreeze(net, optimizer);
      optimizer.zero_grad();
      net(data).square().mean().backward();
      clip_grad_norm(step < 4 ? net->fc2->parameters() : net->parameters(), 0.05);
      optimizer.step();
    }
    return weights_of(*net);
  }();
  auto net = head_alone();
  torch::optim::SGD optimizer(net->fc2->parameters(), 0.1);
  TrainStep step(net, optimizer, {.clip_norm = 0.05});
  for (int i = 0; i < 10; ++i) {
    if (i == 4)
      unfreeze(net, optimizer);
    step(OneBatch{}, [&] { return net(data).square().mean(); });
  }
  const auto weights = weights_of(*net);
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_NEAR(weights[i], plain[i], kDoubleRounding);
}

TEST(TrainStep, AScheduleOfAnotherOptimizerIsRefused) {
  auto net = seeded_layers(), other = seeded_layers();
  torch::optim::SGD optimizer(net->parameters(), 0.1), others(other->parameters(), 0.1);
  Schedule schedule(others, rate::constant());
  EXPECT_THROW(TrainStep(net, optimizer, {.schedule = &schedule}), Error);
}

// Weights that were cast before a step would be those of later ones as well.
TEST(TrainStep, AGuardOfAutocastAroundTheLoopKeepsNoOldWeights) {
  const auto train = [](bool guarded) {
    torch::manual_seed(1);
    torch::nn::Linear net(4, 4);
    Precision precision(at::kCPU, "bf16");
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    TrainStep step(net, optimizer, {.precision = &precision});
    const auto data = fixed_data(8).to(torch::kFloat);
    const auto steps = [&] {
      std::vector<double> losses;
      for (int i = 0; i < 5; ++i) {
        losses.push_back(step(OneBatch{}, [&] {
                           return torch::linear(data, net->weight).square().mean();
                         }).item<double>());
      }
      return losses;
    };
    if (!guarded)
      return steps();
    const auto guard = precision.autocast();
    return steps();
  };
  const auto losses = train(true);
  EXPECT_EQ(losses, train(false));
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace muster::testing
