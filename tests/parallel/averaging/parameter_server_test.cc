// The parameter server: synchronous training exactly, bounded staleness, and deaths on both sides.
#include "muster/parallel/averaging/parameter_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "muster/base/error.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/averaging/parameter_client.h"
#include "tests/parallel/averaging/models.h"
#include "tests/parallel/averaging/tcp_bytes.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

OptimizerPtr make_served_sgd(const std::vector<at::Tensor>& shard) {
  return std::make_unique<torch::optim::SGD>(shard, torch::optim::SGDOptions(0.1).momentum(0.9));
}

OptimizerPtr make_served_adam(const std::vector<at::Tensor>& shard) {
  return std::make_unique<torch::optim::AdamW>(shard, torch::optim::AdamWOptions(0.01));
}

std::mutex served_making;  // torch::manual_seed is the process's

LocalTraining make_served(LocalTraining (*make)()) {
  at::set_num_threads(1);
  const std::lock_guard lock(served_making);
  return make();
}

// Losses [step][worker] of synchronous training: one model, the mean of the workers' gradients.
std::vector<std::vector<double>> simulate_synchronous(
    LocalTraining (*make)(),
    OptimizerPtr (*optimizer_of)(const std::vector<at::Tensor>&),
    int workers,
    int64_t steps) {
  LocalTraining training = make_served(make);
  const std::vector<at::Tensor> parameters = training.net->parameters();
  const OptimizerPtr optimizer = optimizer_of(parameters);
  std::vector<std::vector<double>> losses(static_cast<size_t>(steps));
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<at::Tensor> sums;
    for (int worker = 0; worker < workers; ++worker) {
      training.net->zero_grad();
      at::Tensor loss = training.loss(worker, step);
      loss.backward();
      losses[step].push_back(loss.item<double>());
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (worker == 0) {
          sums.push_back(parameters[i].grad().clone());
        } else {
          sums[i] += parameters[i].grad();
        }
      }
    }
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = sums[i] / workers;
    optimizer->step();
  }
  return losses;
}

double served_step(LocalTraining& training, ParameterClient& client, int worker, int64_t step) {
  client.pull();
  training.net->zero_grad();
  at::Tensor loss = training.loss(worker, step);
  loss.backward();
  client.push();
  return loss.item<double>();
}

struct ServedCase {
  const char* backend;
  LocalTraining (*make)();
  OptimizerPtr (*optimizer_of)(const std::vector<at::Tensor>&);
  int servers;
  int workers;
};

class SynchronousServerTest : public ::testing::TestWithParam<ServedCase> {};
INSTANTIATE_TEST_SUITE_P(Courses,
                         SynchronousServerTest,
                         ::testing::Values(ServedCase{"shm", local_mlp, make_served_sgd, 1, 2},
                                           ServedCase{"shm", local_mlp, make_served_adam, 2, 3},
                                           ServedCase{"shm", local_gpt, make_served_adam, 3, 2},
                                           ServedCase{"gloo", local_gpt, make_served_sgd, 2, 3}));

TEST_P(SynchronousServerTest, HasTheLossesOfSynchronousTraining) {
  const ServedCase& c = GetParam();
  const auto expected = simulate_synchronous(c.make, c.optimizer_of, c.workers, 8);
  const ParameterServerOptions options{.servers = c.servers, .staleness = 0};
  run_ranks(c.servers + c.workers,
            [&](ProcessGroup& group) {
              LocalTraining training = make_served(c.make);
              if (keeps_parameters(group, options)) {
                ParameterServer server(training.net->parameters(), group, c.optimizer_of, options);
                const ParameterServerReport report = server.serve();
                EXPECT_EQ(report.updates, 8);
                EXPECT_EQ(report.largest_lead, 0);
                EXPECT_EQ(report.largest_staleness, 0);
                return;
              }
              ParameterClient client(training.net->parameters(), group, options);
              const int worker = group.rank() - c.servers;
              for (int64_t step = 0; step < 8; ++step) {
                EXPECT_EQ(served_step(training, client, worker, step), expected[step][worker])
                    << "step " << step;
              }
              EXPECT_EQ(client.steps(), 8);
              client.finish();
            },
            {.backend = c.backend});
}

OptimizerPtr make_decaying_sgd(const std::vector<at::Tensor>& shard) {
  return std::make_unique<torch::optim::SGD>(shard,
                                             torch::optim::SGDOptions(0.5).weight_decay(0.5));
}

// 0: every worker has its gradient; 1: one of the two; 2: nobody; 3: frozen.
TEST(ParameterServer, LeavesParametersWithoutGradientsAsTheyAre) {
  for (const int64_t staleness : {0, 4}) {
    const ParameterServerOptions options{.staleness = staleness};
    run_ranks(3, [&](ProcessGroup& group) {
      std::vector<at::Tensor> parameters;
      for (int i = 0; i < 4; ++i)
        parameters.push_back(torch::ones({2}).requires_grad_(i < 3));
      if (keeps_parameters(group, options)) {
        ParameterServer(parameters, group, make_decaying_sgd, options).serve();
        EXPECT_TRUE(parameters[0].lt(0.5).all().item<bool>());
        EXPECT_TRUE(parameters[1].lt(1).all().item<bool>());
        EXPECT_TRUE(parameters[2].eq(1).all().item<bool>());
        EXPECT_TRUE(parameters[3].eq(1).all().item<bool>());
        if (staleness == 0) {
          EXPECT_TRUE(parameters[1].eq(0.5).all().item<bool>());  // the mean of 1 and 0, and decay
        }
        return;
      }
      ParameterClient client(parameters, group, options);
      client.pull();
      parameters[0].mutable_grad() = torch::ones({2});
      if (group.rank() == 1)
        parameters[1].mutable_grad() = torch::ones({2});
      client.push();
      client.finish();
    });
  }
}

// LibTorch's net->parameters() has a weight that two layers share twice.
TEST(ParameterServer, StepsOnceOnASharedWeight) {
  for (const int64_t staleness : {0, 4}) {
    const ParameterServerOptions options{.staleness = staleness};
    run_ranks(2, [&](ProcessGroup& group) {
      const at::Tensor shared = torch::ones({2}).requires_grad_();
      const at::Tensor other = torch::ones({3}).requires_grad_();
      const std::vector<at::Tensor> parameters{shared, other, shared};
      if (keeps_parameters(group, options)) {
        ParameterServer server(parameters, group, make_decaying_sgd, options);
        EXPECT_EQ(server.optimizer().param_groups()[0].params().size(), 2U);
        server.serve();
        EXPECT_TRUE(shared.eq(0.25).all().item<bool>());  // 1 - 0.5 * (1 + 0.5)
        EXPECT_TRUE(other.eq(0.25).all().item<bool>());
        return;
      }
      ParameterClient client(parameters, group, options);
      client.pull();
      shared.mutable_grad() = torch::ones({2});
      other.mutable_grad() = torch::ones({3});
      client.push();
      client.finish();
    });
  }
}

TEST(ParameterServer, AnOptimizerThatNeedsAClosureIsRefused) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    const std::vector<at::Tensor> parameters{torch::ones({2})};
    if (keeps_parameters(group, {}))
      ParameterServer(parameters, group, [](const auto& shard) {
        return std::make_unique<torch::optim::LBFGS>(shard, 1.0);
      });
    else
      ParameterClient(parameters, group);
    group.shutdown();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("got LBFGS"));
}

TEST(ParameterServer, WithoutStalenessHasTheLossesOfDistributedDataParallel) {
  std::vector<std::vector<double>> served(2), reduced(2);
  const ParameterServerOptions options{.staleness = 0};
  const auto loss_of = [](auto&& forward, int worker, int64_t step) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * step + worker);
    const at::Tensor inputs = torch::randn({8, 6}, generator);
    return torch::cross_entropy_loss(forward(inputs), inputs.narrow(1, 0, 3).argmax(1));
  };
  run_ranks(3, [&](ProcessGroup& group) {
    LocalTraining training = make_served(local_mlp);
    if (keeps_parameters(group, options)) {
      ParameterServer(training.net->parameters(), group, make_served_sgd, options).serve();
      return;
    }
    ParameterClient client(training.net->parameters(), group, options);
    const int worker = group.rank() - 1;
    for (int64_t step = 0; step < 10; ++step)
      served[worker].push_back(served_step(training, client, worker, step));
    client.finish();
  });
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Sequential net =
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(make_served(local_mlp).net);
    DistributedDataParallel ddp(net, group);
    const OptimizerPtr optimizer = make_served_sgd(net->parameters());
    for (int64_t step = 0; step < 10; ++step) {
      optimizer->zero_grad();
      at::Tensor loss = loss_of(
          [&](const at::Tensor& inputs) { return ddp.forward(inputs); }, group.rank(), step);
      loss.backward();
      optimizer->step();
      reduced[group.rank()].push_back(loss.item<double>());
    }
  });
  EXPECT_EQ(served, reduced);
}

// One worker waits for nobody: it is training in one process, whatever the staleness.
TEST(ParameterServer, WithOneWorkerIsTrainingAlone) {
  const auto expected = simulate_synchronous(local_mlp, make_served_adam, 1, 6);
  const ParameterServerOptions options{.staleness = kAnyStaleness, .weigh_by_staleness = true};
  run_ranks(2, [&](ProcessGroup& group) {
    LocalTraining training = make_served(local_mlp);
    if (keeps_parameters(group, options)) {
      ParameterServer(training.net->parameters(), group, make_served_adam, options).serve();
      return;
    }
    ParameterClient client(training.net->parameters(), group, options);
    for (int64_t step = 0; step < 6; ++step)
      EXPECT_EQ(served_step(training, client, 0, step), expected[step][0]);
    client.finish();
  });
}

// Worker 1 begins when worker 0 is as far ahead as it may be.
ParameterServerReport run_uneven(int64_t staleness, int64_t steps, int64_t begins_after) {
  ParameterServerReport report;
  std::promise<void> ahead;
  const ParameterServerOptions options{.staleness = staleness};
  run_ranks(3, [&](ProcessGroup& group) {
    const at::Tensor weight = torch::zeros({4});
    if (keeps_parameters(group, options)) {
      report = ParameterServer({weight}, group, make_served_sgd, options).serve();
      return;
    }
    ParameterClient client({weight}, group, options);
    weight.mutable_grad() = torch::ones({4});
    if (group.rank() == 2)
      ahead.get_future().wait();
    for (int64_t step = 1; step <= steps; ++step) {
      client.pull();
      client.push();
      if (group.rank() == 1 && step == begins_after)
        ahead.set_value();
    }
    client.finish();
  });
  return report;
}

TEST(ParameterServer, AWorkerWaitsWhenItIsFurtherAheadThanTheStaleness) {
  const ParameterServerReport bounded = run_uneven(2, 20, 3);
  EXPECT_EQ(bounded.largest_lead, 2);
  EXPECT_EQ(bounded.updates, 40);
  EXPECT_EQ(run_uneven(kAnyStaleness, 20, 20).largest_lead, 19);
}

TEST(ParameterServer, DividesTheLearningRateByStaleness) {
  std::promise<void> first_has_pulled, second_has_pushed;
  const ParameterServerOptions options{.staleness = 9, .weigh_by_staleness = true};
  run_ranks(3, [&](ProcessGroup& group) {
    const at::Tensor weight = torch::zeros({2});
    if (keeps_parameters(group, options)) {
      const auto make = [](const std::vector<at::Tensor>& shard) {
        return std::make_unique<torch::optim::SGD>(shard, 1.0);
      };
      ParameterServer server({weight}, group, make, options);
      EXPECT_EQ(server.serve().largest_staleness, 1);
      EXPECT_TRUE(
          torch::equal(weight, torch::full({2}, -1.5)));  // 1 of worker 1, a half of worker 0
      EXPECT_EQ(server.optimizer().param_groups()[0].options().get_lr(), 1);
      return;
    }
    ParameterClient client({weight}, group, options);
    weight.mutable_grad() = torch::ones({2});
    if (group.rank() == 2)
      first_has_pulled.get_future().wait();
    client.pull();
    if (group.rank() == 1) {
      first_has_pulled.set_value();
      second_has_pushed.get_future().wait();
    }
    client.push();
    client.pull();  // answered after the push
    if (group.rank() == 2)
      second_has_pushed.set_value();
    client.finish();
  });
}

class ParameterServerTest : public ::testing::TestWithParam<std::tuple<const char*, int64_t>> {};
INSTANTIATE_TEST_SUITE_P(Backends,
                         ParameterServerTest,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::Values(0, 3)));

TEST_P(ParameterServerTest, GoesOnWithoutAWorkerThatDies) {
  const auto [backend, staleness] = GetParam();
  const ParameterServerOptions options{.servers = 2, .staleness = staleness};
  std::vector<ParameterServerReport> reports(2);
  const auto failures = failures_of_ranks(
      5,
      [&](ProcessGroup& group) {
        LocalTraining training = make_served(local_mlp);
        if (keeps_parameters(group, options)) {
          reports[group.rank()] =
              ParameterServer(training.net->parameters(), group, make_served_sgd, options).serve();
          return group.abandon();
        }
        ParameterClient client(training.net->parameters(), group, options);
        for (int64_t step = 0; step < 12; ++step) {
          if (group.rank() == 3 && step == 4)
            throw std::runtime_error("out of fuel");
          served_step(training, client, group.rank(), step);
        }
        client.finish();
        group.abandon();
      },
      {.backend = backend});
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(message_of(failures[rank]), rank == 3 ? "out of fuel" : "") << "rank " << rank;
  }
  for (const ParameterServerReport& report : reports) {
    EXPECT_THAT(report.lost, ElementsAre(3));
    EXPECT_EQ(report.updates, staleness == 0 ? 12 : 12 + 12 + 4);
  }
}

TEST_P(ParameterServerTest, ADeadServerIsAClearFailureOnEveryWorker) {
  const auto [backend, staleness] = GetParam();
  const ParameterServerOptions options{.servers = 2, .staleness = staleness};
  const auto failures = failures_of_ranks(
      4,
      [&](ProcessGroup& group) {
        LocalTraining training = make_served(local_mlp);
        if (keeps_parameters(group, options)) {
          ParameterServer server(training.net->parameters(), group, make_served_sgd, options);
          server.serve([&](torch::optim::Optimizer&, int64_t update) {
            if (group.rank() == 1 && update == 3)
              throw std::runtime_error("the disk is full");
          });
          return;
        }
        ParameterClient client(training.net->parameters(), group, options);
        for (int64_t step = 0; step < 1000; ++step)
          served_step(training, client, group.rank(), step);
        client.finish();
      },
      {.backend = backend});
  EXPECT_THAT(message_of(failures[0]),
              HasSubstr("expected a worker to finish, got none: ranks 2, 3"));
  EXPECT_EQ(message_of(failures[1]), "the disk is full");
  for (const int worker : {2, 3}) {
    EXPECT_THAT(message_of(failures[worker]),
                AllOf(HasSubstr("ParameterClient: "),
                      HasSubstr(cat("on rank ", worker)),
                      HasSubstr("expected server rank 1 to answer")));
  }
}

// A worker sends P bytes of gradients and receives P of parameters a step.
TEST(ParameterServer, SendsWhatTheFormulaSays) {
  constexpr int kWorkers = 2;
  constexpr int64_t kSteps = 10;
  std::atomic<int64_t> sent = 0;
  std::promise<void> has_counted;  // a connection that is closed counts no more
  const std::shared_future<void> counted_all = has_counted.get_future().share();
  const ParameterServerOptions options{.servers = 1, .staleness = 0};
  run_ranks(1 + kWorkers,
            [&](ProcessGroup& group) {
              const std::vector<at::Tensor> weights{torch::ones({100'000}), torch::ones({100'000})};
              if (keeps_parameters(group, options)) {
                ParameterServer server(weights, group, make_served_sgd, options);
                sent -= tcp_bytes_sent();
                group.barrier();
                server.serve([&](torch::optim::Optimizer&, int64_t update) {
                  if (update + 1 != kSteps)
                    return;
                  sent += tcp_bytes_sent();
                  has_counted.set_value();
                });
                return;
              }
              ParameterClient client(weights, group, options);
              for (const at::Tensor& weight : weights)
                weight.mutable_grad() = torch::ones({100'000});
              group.barrier();
              for (int64_t step = 0; step < kSteps; ++step) {
                client.pull();
                client.push();
              }
              counted_all.wait();
              client.finish();
            },
            {.backend = "gloo"});
  const double formula = 2.0 * 800'000;
  const double counted = static_cast<double>(sent) / kWorkers / kSteps;
  std::cout << "counted " << counted << " B a worker and step, both ways; formula " << formula
            << "\n";
  EXPECT_NEAR(counted / formula, 1, 0.01);
}

}  // namespace
}  // namespace muster::testing
