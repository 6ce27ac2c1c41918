// Local SGD against its formula: all workers in one process, one after the other.
#include "muster/parallel/averaging/local_sgd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "tests/parallel/averaging/models.h"
#include "tests/parallel/averaging/tcp_bytes.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

// Losses [step][worker] and the last parameters of worker 0.
struct LocalCourse {
  std::vector<std::vector<double>> losses;
  std::vector<at::Tensor> parameters;
};

constexpr double kLocalRate = 0.1;

void local_learn(LocalTraining& training,
                 torch::optim::SGD& optimizer,
                 int worker,
                 int64_t step,
                 std::vector<double>& losses) {
  optimizer.zero_grad();
  at::Tensor loss = training.loss(worker, step);
  loss.backward();
  optimizer.step();
  losses.push_back(loss.item<double>());
}

// `host_size`: workers of a host, which average in every step; 1: none.
LocalCourse simulate_local(LocalTraining (*make)(),
                           int workers,
                           int64_t steps,
                           int64_t every,
                           int64_t start,
                           int host_size = 1) {
  at::set_num_threads(1);
  std::vector<LocalTraining> trainings = local_copies(make, workers);
  std::vector<torch::optim::SGD> optimizers;
  for (LocalTraining& training : trainings)
    optimizers.emplace_back(training.net->parameters(),
                            torch::optim::SGDOptions(kLocalRate).momentum(0.9));
  LocalCourse course;
  for (int64_t step = 1; step <= steps; ++step) {
    course.losses.emplace_back();
    for (int w = 0; w < workers; ++w)
      local_learn(trainings[w], optimizers[w], w, step, course.losses.back());
    for (int host = 0; host_size > 1 && host < workers / host_size; ++host) {
      std::vector<LocalTraining*> inside;
      for (int i = 0; i < host_size; ++i)
        inside.push_back(&trainings[host * host_size + i]);
      average_copies(inside);
    }
    if (step > start && (step - start) % every != 0)
      continue;
    for (int place = 0; place < host_size; ++place) {
      std::vector<LocalTraining*> between;
      for (int w = place; w < workers; w += host_size)
        between.push_back(&trainings[w]);
      average_copies(between);
    }
  }
  course.parameters = trainings[0].net->parameters();
  return course;
}

// On ranks; compares every loss and the parameters with `expected` to `bound`.
void expect_local_course(ProcessGroup& group,
                         LocalTraining& training,
                         LocalSGD& local,
                         const LocalCourse& expected,
                         double bound) {
  torch::optim::SGD optimizer(training.net->parameters(),
                              torch::optim::SGDOptions(kLocalRate).momentum(0.9));
  std::vector<double> losses;
  for (size_t step = 1; step <= expected.losses.size(); ++step) {
    local_learn(training, optimizer, group.rank(), static_cast<int64_t>(step), losses);
    local.step();
    EXPECT_NEAR(losses.back(), expected.losses[step - 1][group.rank()], bound)
        << "rank " << group.rank() << " step " << step;
  }
  if (group.rank() == 0) {
    EXPECT_LE(largest_difference(training.net->parameters(), expected.parameters), bound);
  }
}

std::mutex local_making;  // torch::manual_seed is the process's

LocalTraining make_alone(LocalTraining (*make)()) {
  at::set_num_threads(1);
  const std::lock_guard lock(local_making);
  return make();
}

struct LocalCase {
  const char* backend;
  LocalTraining (*make)();
  int workers;
  double bound;
};

class LocalSGDTest : public ::testing::TestWithParam<LocalCase> {};
INSTANTIATE_TEST_SUITE_P(Courses,
                         LocalSGDTest,
                         ::testing::Values(LocalCase{"shm", local_mlp, 4, 0},
                                           LocalCase{"shm", local_mlp, 3, 0},
                                           LocalCase{"shm", local_gpt, 2, 0},
                                           LocalCase{"gloo", local_mlp, 2, 0},
                                           LocalCase{"gloo", local_gpt, 3, 1e-5}));

TEST_P(LocalSGDTest, EqualsTheSimulationOfAllWorkers) {
  const LocalCase& c = GetParam();
  const LocalCourse expected = simulate_local(c.make, c.workers, 11, 3, 2);
  run_ranks(c.workers,
            [&](ProcessGroup& group) {
              LocalTraining training = make_alone(c.make);
              LocalSGD local(training.net->parameters(), group, {.every = 3, .start = 2});
              expect_local_course(group, training, local, expected, c.bound);
              EXPECT_EQ(local.steps(), 11);
            },
            {.backend = c.backend});
}

TEST(LocalSGD, AveragesInsideAHostInEveryStepAndBetweenHostsInSome) {
  const LocalCourse expected = simulate_local(local_mlp, 4, 9, 4, 0, 2);
  run_ranks(4, [&](ProcessGroup& group) {
    Mesh mesh(group, {{"host", 2}, {"gpu", 2}});
    LocalTraining training = make_alone(local_mlp);
    LocalSGD local(
        training.net->parameters(), mesh.group("host"), {.every = 4, .inside = mesh.group("gpu")});
    expect_local_course(group, training, local, expected, 0);
    mesh.shutdown();
  });
}

// With plain SGD and an average in every step the weights are those of synchronous training: w −
// lr·mean(g) is mean(w − lr·g). Numbers that doubles hold exactly make it the same bits.
TEST(LocalSGD, WithEveryStepEqualsDistributedDataParallel) {
  run_ranks(2, [](ProcessGroup& group) {
    at::set_num_threads(1);
    const auto make = [] {
      torch::nn::Linear net(torch::nn::LinearOptions(4, 2).bias(false));
      net->to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      net->weight.copy_(torch::arange(8, torch::kDouble).view({2, 4}) - 4);
      return net;
    };
    torch::nn::Linear mine = make(), other = make();
    DistributedDataParallel ddp(other, group);
    torch::optim::SGD sgd(mine->parameters(), 0.25), ddp_sgd(other->parameters(), 0.25);
    LocalSGD local(mine->parameters(), group, {.every = 1});
    const at::Tensor inputs = torch::arange(8, torch::kDouble).view({2, 4}) - 3 * group.rank();
    for (int step = 0; step < 4; ++step) {
      sgd.zero_grad();
      ddp_sgd.zero_grad();
      mine(inputs).pow(2).mean().backward();
      ddp.forward(inputs).pow(2).mean().backward();
      sgd.step();
      ddp_sgd.step();
      EXPECT_TRUE(local.step());
      EXPECT_TRUE(torch::equal(mine->weight, other->weight)) << step;
    }
  });
}

TEST(LocalSGD, WithEveryStepStaysBesideDistributedDataParallelInFloats) {
  run_ranks(3, [](ProcessGroup& group) {
    LocalTraining training = make_alone(local_mlp), other = make_alone(local_mlp);
    torch::nn::Sequential net = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(other.net);
    DistributedDataParallel ddp(net, group);
    torch::optim::SGD sgd(training.net->parameters(), 0.5), ddp_sgd(net->parameters(), 0.5);
    LocalSGD local(training.net->parameters(), group, {.every = 1});
    for (int64_t step = 0; step < 20; ++step) {
      sgd.zero_grad();
      ddp_sgd.zero_grad();
      training.loss(group.rank(), step).backward();
      auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + group.rank());
      const at::Tensor inputs = torch::randn({8, 6}, generator);
      torch::cross_entropy_loss(ddp.forward(inputs), inputs.narrow(1, 0, 3).argmax(1)).backward();
      sgd.step();
      ddp_sgd.step();
      local.step();
    }
    EXPECT_LE(largest_difference(training.net->parameters(), net->parameters()), 1e-6);
  });
}

TEST(LocalSGD, AveragesBuffersThatAreNumbersAndLeavesCounts) {
  run_ranks(2, [](ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(3);
    LocalSGD local(norm->parameters(), group, {.every = 1, .buffers = norm->buffers()});
    norm->running_mean.fill_(group.rank() + 1);
    norm->num_batches_tracked.fill_(7 + group.rank());
    local.step();
    EXPECT_TRUE(torch::equal(norm->running_mean, torch::full({3}, 1.5)));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 7 + group.rank());
  });
}

// 2·P·(N−1)/N a rank and average: P bytes of parameters, N ranks.
TEST(LocalSGD, SendsWhatTheFormulaSays) {
  constexpr int kRanks = 4;
  constexpr int64_t kSteps = 12, kEvery = 4;
  std::atomic<int64_t> sent = 0;
  run_ranks(kRanks,
            [&](ProcessGroup& group) {
              const at::Tensor weight = torch::ones({250'000});
              LocalSGD local({weight}, group, {.every = kEvery});
              local.average();  // the first call of a shape is compared over the store, too
              group.barrier();
              if (group.rank() == 0)
                sent -= tcp_bytes_sent();
              group.barrier();
              for (int64_t step = 0; step < kSteps; ++step)
                local.step();
              group.barrier();
              if (group.rank() == 0)
                sent += tcp_bytes_sent();
              group.barrier();
            },
            {.backend = "gloo"});
  const double bytes = 250'000 * 4;
  const double formula = 2 * bytes * (kRanks - 1) / kRanks / kEvery;
  const double counted = static_cast<double>(sent) / kRanks / kSteps;
  RecordProperty("bytes_a_rank_and_step", std::to_string(counted));
  std::cout << "counted " << counted << " B a rank and step, formula " << formula << "\n";
  EXPECT_NEAR(counted / formula, 1, 0.01);
}

TEST(LocalSGD, RefusesOnEveryRankBeforeTheFirstStep) {
  const auto refusals = [](auto&& make) {
    return failures_of_ranks(2, [&](ProcessGroup& group) { make(group); });
  };
  for (const auto& failure : refusals([](ProcessGroup& group) {
         LocalSGD({torch::ones({2})}, group, {.every = group.rank() == 1 ? 0 : 4});
       }))
    EXPECT_THAT(message_of(failure), HasSubstr("every 1 step or more, got every 0 (rank 1)"));
  for (const auto& failure : refusals([](ProcessGroup& group) {
         LocalSGD({torch::ones({2})}, group, {.every = 2, .start = -1});
       }))
    EXPECT_THAT(message_of(failure), HasSubstr("start of 0 steps or more, got -1"));
  for (const auto& failure : refusals([](ProcessGroup& group) {
         LocalSGD({torch::ones({2 + group.rank()})}, group, {.every = 2});
       }))
    EXPECT_THAT(message_of(failure), HasSubstr("got parameter 0 Float [2]"));
  for (const auto& failure : refusals([](ProcessGroup& group) {
         LocalSGD({torch::full({2}, 1.0 * group.rank())}, group, {.every = 2});
       }))
    EXPECT_THAT(message_of(failure),
                HasSubstr("expected the same on every rank, got parameter 0 Float"));
  for (const auto& failure : refusals([](ProcessGroup& group) {
         LocalSGD({torch::ones({2})}, group, {.every = 2 + group.rank()});
       }))
    EXPECT_THAT(message_of(failure), HasSubstr("got every 2 on rank 0 and 3 on rank 1"));
}

TEST(LocalSGD, WhatOneHostRefusesAllRefuse) {
  const auto failures = failures_of_ranks(4, [](ProcessGroup& group) {
    Mesh mesh(group, {{"host", 2}, {"gpu", 2}});
    const double weight = group.rank() == 3 ? 7 : 1;
    LocalSGD(
        {torch::full({2}, weight)}, mesh.group("host"), {.every = 2, .inside = mesh.group("gpu")});
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("expected the same on every rank, got parameter 0"));
}

TEST(LocalSGD, ARankThatFailsIsAnErrorOnTheOthers) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    const at::Tensor parameter = torch::ones({2});
    LocalSGD local({parameter}, group, {.every = 2});
    local.step();
    if (group.rank() == 1)
      throw std::runtime_error("out of fuel");
    local.step();
  });
  EXPECT_THAT(message_of(failures[0]), HasSubstr("rank 1"));
  EXPECT_EQ(message_of(failures[1]), "out of fuel");
  EXPECT_THAT(message_of(failures[2]), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace muster::testing
