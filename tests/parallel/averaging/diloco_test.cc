// DiLoCo against all workers in one process, with LibTorch's own SGD as the outer optimizer.
#include "muster/parallel/averaging/diloco.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "muster/base/error.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "tests/data/files.h"
#include "tests/parallel/averaging/models.h"
#include "tests/support/ranks.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::mutex diloco_making;  // torch::manual_seed is the process's

LocalTraining make_for_diloco(LocalTraining (*make)()) {
  at::set_num_threads(1);
  const std::lock_guard lock(diloco_making);
  return make();
}

double diloco_learn(LocalTraining& training, torch::optim::AdamW& inner, int worker, int64_t step) {
  inner.zero_grad();
  at::Tensor loss = training.loss(worker, step);
  loss.backward();
  inner.step();
  return loss.item<double>();
}

// Losses [step][worker].
std::vector<std::vector<double>> simulate_diloco(
    LocalTraining (*make)(), int workers, int64_t steps, int64_t every, bool nesterov) {
  LocalTraining common = make_for_diloco(make);
  std::vector<LocalTraining> trainings = local_copies(make, workers);
  std::vector<torch::optim::AdamW> inners;
  for (LocalTraining& training : trainings)
    inners.emplace_back(training.net->parameters(), torch::optim::AdamWOptions(0.01));
  torch::optim::SGD outer(common.net->parameters(),
                          torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(nesterov));
  std::vector<std::vector<double>> losses;
  for (int64_t step = 1; step <= steps; ++step) {
    losses.emplace_back();
    for (int w = 0; w < workers; ++w)
      losses.back().push_back(diloco_learn(trainings[w], inners[w], w, step));
    if (step % every != 0)
      continue;
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < common.net->parameters().size(); ++i) {
      at::Tensor parameter = common.net->parameters()[i];
      at::Tensor sum = parameter - trainings[0].net->parameters()[i];
      for (int w = 1; w < workers; ++w)
        sum += parameter - trainings[w].net->parameters()[i];
      parameter.mutable_grad() = sum / workers;
    }
    outer.step();
    for (LocalTraining& training : trainings) {
      for (size_t i = 0; i < common.net->parameters().size(); ++i)
        training.net->parameters()[i].copy_(common.net->parameters()[i]);
    }
  }
  return losses;
}

struct DiLoCoCase {
  const char* backend;
  LocalTraining (*make)();
  int workers;
  bool nesterov;
  double bound;
};

class DiLoCoTest : public ::testing::TestWithParam<DiLoCoCase> {};
INSTANTIATE_TEST_SUITE_P(Courses,
                         DiLoCoTest,
                         ::testing::Values(DiLoCoCase{"shm", local_mlp, 4, true, 0},
                                           DiLoCoCase{"shm", local_mlp, 2, false, 0},
                                           DiLoCoCase{"shm", local_gpt, 2, true, 0},
                                           DiLoCoCase{"gloo", local_gpt, 3, true, 1e-4}));

TEST_P(DiLoCoTest, EqualsTheSimulationOfAllWorkers) {
  const DiLoCoCase& c = GetParam();
  const auto expected = simulate_diloco(c.make, c.workers, 10, 3, c.nesterov);
  run_ranks(c.workers,
            [&](ProcessGroup& group) {
              LocalTraining training = make_for_diloco(c.make);
              torch::optim::AdamW inner(training.net->parameters(),
                                        torch::optim::AdamWOptions(0.01));
              DiLoCo outer(training.net->parameters(), group, {.every = 3, .nesterov = c.nesterov});
              for (int64_t step = 1; step <= 10; ++step) {
                const double loss = diloco_learn(training, inner, group.rank(), step);
                EXPECT_NEAR(loss, expected[step - 1][group.rank()], c.bound) << "step " << step;
                EXPECT_EQ(outer.step(), step % 3 == 0);
              }
            },
            {.backend = c.backend});
}

// The outer momentum would go on moving it, which no optimizer does without a gradient.
TEST(DiLoCo, LeavesFrozenParametersAlone) {
  run_ranks(2, [](ProcessGroup& group) {
    LocalTraining training = make_for_diloco(local_mlp);
    torch::optim::SGD inner(training.net->parameters(), 0.1);
    DiLoCo outer(training.net->parameters(), group, {.every = 2});
    const auto learn = [&](int64_t step) {
      inner.zero_grad();
      training.loss(group.rank(), step).backward();
      inner.step();
      outer.step();
    };
    for (int64_t step = 0; step < 4; ++step)
      learn(step);
    const auto parameters = training.net->parameters();
    parameters[0].set_requires_grad(false);
    const at::Tensor frozen = parameters[0].clone(), trained = parameters[2].clone();
    for (int64_t step = 4; step < 8; ++step)
      learn(step);
    EXPECT_TRUE(parameters[0].equal(frozen));
    EXPECT_FALSE(parameters[2].equal(trained));
    parameters[0].set_requires_grad(true);
    for (int64_t step = 8; step < 10; ++step)
      learn(step);
    EXPECT_FALSE(parameters[0].equal(frozen));
  });
}

// The way to the loaded values is nothing that was learned.
TEST(DiLoCo, WarnsOnceOfLoadedWeightsThatAreNoStep) {
  const auto said_of_loaded = [](bool takes_present) {
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](ProcessGroup& group) {
      LocalTraining training = make_for_diloco(local_mlp), other = make_for_diloco(local_mlp);
      DiLoCo outer(training.net->parameters(), group, {.every = 1});
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : other.net->parameters())
          parameter.add_(1);
      }
      std::stringstream file;
      torch::save(other.net, file);
      torch::load(training.net, file);
      if (takes_present)
        outer.take_present();
      EXPECT_TRUE(outer.step());
      const bool stays = training.net->parameters()[0].equal(other.net->parameters()[0]);
      EXPECT_EQ(stays, takes_present);
      outer.step();
    });
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(times(said_of_loaded(false), "expected take_present()"), 1U);
  EXPECT_EQ(times(said_of_loaded(true), "expected take_present()"), 0U);
}

// Saved and loaded at an outer step as Checkpoints does, it goes on with the same bits.
TEST(DiLoCo, GoesOnFromItsState) {
  static_assert(HasState<DiLoCo>);
  run_ranks(2, [](ProcessGroup& group) {
    LocalTraining first = make_for_diloco(local_mlp), second = make_for_diloco(local_mlp);
    torch::optim::SGD first_sgd(first.net->parameters(), 0.1),
        second_sgd(second.net->parameters(), 0.1);
    DiLoCo first_outer(first.net->parameters(), group, {.every = 2});
    DiLoCo second_outer(second.net->parameters(), group, {.every = 2});
    const auto learn =
        [&](LocalTraining& training, torch::optim::SGD& sgd, DiLoCo& outer, int64_t step) {
          sgd.zero_grad();
          training.loss(group.rank(), step).backward();
          sgd.step();
          outer.step();
        };
    for (int64_t step = 0; step < 4; ++step)
      learn(first, first_sgd, first_outer, step);
    SavedState saved = first_outer.state();
    for (auto& [name, tensor] : saved.tensors)
      tensor = tensor.clone();
    second_outer.load_state(saved);
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < first.net->parameters().size(); ++i)
        second.net->parameters()[i].copy_(first.net->parameters()[i]);
    }
    for (int64_t step = 4; step < 8; ++step) {
      learn(first, first_sgd, first_outer, step);
      learn(second, second_sgd, second_outer, step);
    }
    EXPECT_EQ(second_outer.steps(), 8);
    EXPECT_EQ(largest_difference(first.net->parameters(), second.net->parameters()), 0);

    saved.tensors.erase("common.1");
    EXPECT_THROW(second_outer.load_state(saved), Error);
  });
}

// With an inner rate of 0 nothing is learnt, so the outer step moves nothing.
void expect_that_weights_stay(torch::nn::Linear& net, DiLoCo& outer) {
  torch::optim::SGD inner(net->parameters(), 0.0);
  for (int step = 0; step < 6; ++step) {
    inner.zero_grad();
    net(torch::ones({1, 2})).sum().backward();
    inner.step();
    outer.step();
    EXPECT_TRUE(net->weight.eq(1).all().item<bool>()) << step << ": " << net->weight;
  }
}

void fill_net(torch::nn::Linear& net, double value) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters())
    parameter.fill_(value);
}

TEST(DiLoCo, BeginsWithWeightsThatWereLoadedAfterIt) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    fill_net(net, 0.5);
    DiLoCo outer(net->parameters(), group, {.every = 2});
    fill_net(net, 1);  // as load_weights does
    outer.take_present();
    expect_that_weights_stay(net, outer);
    fill_net(net, group.rank());
    EXPECT_THROW(outer.take_present(), Error) << "ranks have loaded different weights";
  });
}

TEST(DiLoCo, BeginsWithTheModelOfACheckpointThatHadNone) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    fill_net(net, 1);
    Checkpoints(group, {.folder = folder.path()}).add("model", net).save(1);
    for (const bool is_new : {true, false}) {
      torch::nn::Linear resumed(2, 2);
      fill_net(resumed, 0.5);
      DiLoCo outer(resumed->parameters(), group, {.every = 2});
      CheckpointsOptions options{.folder = folder.path(), .resume = true};
      if (is_new)
        options.new_parts = {"outer"};
      Checkpoints checkpoints(group, options);
      checkpoints.add("model", resumed).add("outer", outer);
      EXPECT_TRUE(checkpoints.restore());
      expect_that_weights_stay(resumed, outer);
      checkpoints.save(2);  // the second time it is restored with the others
    }
  });
}

TEST(DiLoCo, RefusesOnEveryRankBeforeTheFirstStep) {
  const auto expect_refusal = [](const DiLoCoOptions& wrong, const char* words) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      DiLoCo({torch::ones({2})}, group, group.rank() == 1 ? wrong : DiLoCoOptions{});
    });
    for (const auto& failure : failures)
      EXPECT_THAT(message_of(failure), HasSubstr(words));
  };
  expect_refusal({.every = 0}, "every 1 step or more, got every 0 (rank 1)");
  expect_refusal({.learning_rate = 0}, "a learning rate above 0, got 0 (rank 1)");
  expect_refusal({.momentum = 1}, "a momentum of 0 to less than 1, got 1 (rank 1)");
  expect_refusal({.every = 7}, "got every 100 on rank 0 and 7 on rank 1");
}

}  // namespace
}  // namespace muster::testing
