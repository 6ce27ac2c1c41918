// Values that a program gives parameters on some ranks alone: on one host of a model that is
// divided inside each host, or on one rank of ZeRO-2. They are an error on every rank; what all
// ranks write alike trains as one process does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/models.h"
#include "tests/parallel/sharded/two_hosts.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Sequential;
using torch::optim::SGD;
using Change = std::function<void(Sequential&, int rank)>;

void halve(Sequential& net) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters())
    parameter.mul_(0.5);
}

// A file with other weights than those of sharded_mlp().
class OtherWeights {
 public:
  explicit OtherWeights(const std::string& name)
      : path_((std::filesystem::temp_directory_path() / cat("new-values-", ::getpid(), name))
                  .string()) {
    auto net = sharded_mlp();
    halve(net);
    torch::save(net, path_);
  }
  ~OtherWeights() { std::filesystem::remove(path_); }
  OtherWeights(const OtherWeights&) = delete;
  OtherWeights& operator=(const OtherWeights&) = delete;

  void load(Sequential& net) const { torch::load(net, path_); }

 private:
  std::string path_;
};

// Two steps, the change, two more.
template <class Forward>
void train_with_change(Sequential& net,
                       torch::optim::Optimizer& optimizer,
                       int rank,
                       int ranks,
                       Forward&& forward,
                       const Change& change) {
  at::set_num_threads(1);
  for (int64_t step = 0; step < 4; ++step) {
    if (step == 2)
      change(net, rank);
    const auto batch = mlp_batch(step).of(rank, ranks);
    optimizer.zero_grad();
    sharded_loss(forward(batch.x), batch.y).backward();
    optimizer.step();
  }
}

std::vector<at::Tensor> weights_of_one_process(const std::function<void(Sequential&)>& change) {
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), 0.1);
  train_with_change(
      net,
      optimizer,
      0,
      1,
      [&](const at::Tensor& x) { return net->forward(x); },
      [&](Sequential& changed, int) { change(changed); });
  return net->parameters();
}

void expect_near(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-5, 1e-6)) << i;
}

class NewValuesOver : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends,
                         NewValuesOver,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

enum class When { between_steps, while_whole };

// Trains fully sharded inside hosts, and gives the weights to `look`.
void train_on_hosts(ProcessGroup& group,
                    When when,
                    const Change& change,
                    const std::function<void(Sequential&)>& look) {
  TwoHosts hosts(group);
  FullySharded sharded(hosts.inside, {.replicate_group = hosts.across});
  auto net = sharded_mlp();
  auto model = sharded.wrap(net);
  SGD optimizer(sharded.parameters(), 0.1);
  train_with_change(
      net, optimizer, group.rank(), group.size(), model, [&](Sequential& changed, int rank) {
        const auto whole = when == When::while_whole ? sharded.whole_parameters() : nullptr;
        change(changed, rank);
      });
  const auto whole = sharded.whole_parameters();
  look(net);
}

TEST_P(NewValuesOver, OneHostAloneAreRefused) {
  const OtherWeights other(GetParam());
  const auto load = [&](Sequential& net, int rank) {
    if (rank >= 2)
      other.load(net);
  };
  const auto write = [](Sequential& net, int rank) {
    if (rank >= 2)
      halve(net);
  };
  const auto write_bias = [](Sequential& net, int rank) {
    const torch::NoGradGuard no_grad;
    if (rank < 2)
      net->parameters()[1].fill_(1);
  };
  const std::vector<std::pair<When, Change>> changes = {{When::between_steps, load},
                                                        {When::while_whole, load},
                                                        {When::while_whole, write},
                                                        {When::while_whole, write_bias}};
  for (const auto& [when, change] : changes) {
    const auto failures = failures_of_ranks(
        4,
        [&](ProcessGroup& group) { train_on_hosts(group, when, change, [](Sequential&) {}); },
        {.backend = GetParam()});
    int refused = 0;
    for (const auto& failure : failures)
      refused +=
          message_of(failure).find("to be the same on every rank and host") != std::string::npos;
    EXPECT_GE(refused, 2) << message_of(failures[0]);
    for (const auto& failure : failures)
      EXPECT_TRUE(failure);
  }
}

TEST_P(NewValuesOver, AllHostsTrainAsOneProcess) {
  const OtherWeights other(GetParam());
  const auto load = [&](Sequential& net) {
    other.load(net);
  };
  const std::vector<std::pair<When, std::function<void(Sequential&)>>> changes = {
      {When::between_steps, load}, {When::while_whole, load}, {When::while_whole, halve}};
  for (const auto& [when, change] : changes) {
    const auto expected = weights_of_one_process(change);
    const Change on_all = [&](Sequential& net, int) {
      change(net);
    };
    run_ranks(4,
              [&, when = when](ProcessGroup& group) {
                train_on_hosts(group, when, on_all, [&](Sequential& net) {
                  expect_near(net->parameters(), expected);
                });
              },
              {.backend = GetParam()});
  }
}

// Averages that rank 0 alone evaluates, and takes out again.
TEST_P(NewValuesOver, OnesThatARankHasPutBackAreNoChange) {
  const Change swap = [](Sequential& net, int rank) {
    if (rank != 0)
      return;
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) {
      const at::Tensor before = parameter.clone();
      parameter.fill_(7);
      parameter.copy_(before);
    }
  };
  const auto expected = weights_of_one_process([](Sequential&) {});
  run_ranks(4,
            [&](ProcessGroup& group) {
              train_on_hosts(group, When::while_whole, swap, [&](Sequential& net) {
                expect_near(net->parameters(), expected);
              });
              TwoHosts hosts(group);
              auto net = sharded_mlp();
              ShardedOptimizer<SGD> optimizer(net->parameters(),
                                              0.1,
                                              hosts.inside,
                                              {.gradients = true, .replicate_group = hosts.across});
              const auto forward = [&](const at::Tensor& x) {
                return net->forward(x);
              };
              train_with_change(net, optimizer, group.rank(), group.size(), forward, swap);
              expect_near(net->parameters(), expected);
            },
            {.backend = GetParam()});
}

// Averages that one host evaluates by forwards, which its ranks make together.
TEST_P(NewValuesOver, OnesThatAHostHasPutBackAreNoChange) {
  const auto expected = weights_of_one_process([](Sequential&) {});
  run_ranks(4,
            [&](ProcessGroup& group) {
              TwoHosts hosts(group);
              FullySharded sharded(hosts.inside, {.replicate_group = hosts.across});
              auto net = sharded_mlp();
              auto model = sharded.wrap(net);
              SGD optimizer(sharded.parameters(), 0.1);
              const auto write = [&](const std::function<void()>& change) {
                const auto whole = sharded.whole_parameters();
                const torch::NoGradGuard no_grad;
                if (group.rank() >= 2)
                  change();
              };
              std::vector<at::Tensor> before;
              const Change swap_twice = [&](Sequential& swapped, int) {
                write([&] {
                  for (at::Tensor& parameter : swapped->parameters()) {
                    before.push_back(parameter.clone());
                    parameter.fill_(7);
                  }
                });
                const torch::NoGradGuard no_grad;
                if (group.rank() >= 2)
                  model(mlp_batch(9).x);
                write([&] {
                  for (size_t i = 0; i < before.size(); ++i)
                    swapped->parameters()[i].copy_(before[i]);
                });
              };
              train_with_change(net, optimizer, group.rank(), group.size(), model, swap_twice);
              const auto whole = sharded.whole_parameters();
              expect_near(net->parameters(), expected);
            },
            {.backend = GetParam()});
}

// As in sharpness-aware training of each rank's own: it is subtracted again before the step.
TEST_P(NewValuesOver, PerturbationsOfEachRanksOwnAreNoChange) {
  run_ranks(2,
            [&](ProcessGroup& group) {
              auto net = sharded_mlp();
              ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group, {.gradients = true});
              const auto perturb = [&](double by) {
                const torch::NoGradGuard no_grad;
                for (at::Tensor& parameter : net->parameters())
                  parameter.add_(by * (1 + group.rank()));
              };
              for (int64_t step = 0; step < 3; ++step) {
                const auto batch = mlp_batch(step).of(group.rank(), 2);
                optimizer.zero_grad();
                perturb(0.01);
                sharded_loss(net->forward(batch.x), batch.y).backward();
                perturb(-0.01);
                optimizer.step();
              }
            },
            {.backend = GetParam()});
}

// Of ZeRO-2. `rank` < `written` writes.
std::vector<std::string> said_of_written(const char* backend, int written, const Change& write) {
  const auto failures = failures_of_ranks(
      4,
      [&](ProcessGroup& group) {
        TwoHosts hosts(group);
        auto net = sharded_mlp();
        ShardedOptimizer<SGD> optimizer(net->parameters(),
                                        0.1,
                                        hosts.inside,
                                        {.gradients = true, .replicate_group = hosts.across});
        const auto forward = [&](const at::Tensor& x) {
          return net->forward(x);
        };
        train_with_change(net,
                          optimizer,
                          group.rank(),
                          group.size(),
                          forward,
                          [&](Sequential& changed, int rank) {
                            if (rank < written)
                              write(changed, rank);
                          });
      },
      {.backend = backend});
  std::vector<std::string> said;
  for (const auto& failure : failures)
    said.push_back(message_of(failure));
  return said;
}

TEST_P(NewValuesOver, OneRankOfZeroTwoAreRefused) {
  const Change copy = [](Sequential& net, int) {
    halve(net);
  };
  const Change init = [](Sequential& net, int) {
    torch::nn::init::constant_(net->parameters()[2], 0.25);
  };
  for (const Change& write : {copy, init}) {
    for (const int written : {1, 2}) {  // a rank, a host
      const auto said = said_of_written(GetParam(), written, write);
      EXPECT_THAT(said[0], HasSubstr("to be the same on every rank and host")) << written;
      EXPECT_THAT(said[written], HasSubstr("to be the same on every rank and host")) << written;
    }
  }
}

TEST_P(NewValuesOver, AllRanksOfZeroTwoTrainAsOneProcess) {
  const auto expected = weights_of_one_process(halve);
  run_ranks(3,
            [&](ProcessGroup& group) {
              auto net = sharded_mlp();
              ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group, {.gradients = true});
              const auto forward = [&](const at::Tensor& x) {
                return net->forward(x);
              };
              train_with_change(
                  net, optimizer, group.rank(), 3, forward, [](Sequential& changed, int) {
                    halve(changed);
                  });
              expect_near(net->parameters(), expected);
            },
            {.backend = GetParam()});
}

// Of ZeRO-1, where the wrapper averages over a host alone: hosts would train apart.
TEST(ReplicatedGradients, ThatNobodyAveragesOverHostsAreRefused) {
  const auto failures = failures_of_ranks(4, [](ProcessGroup& group) {
    TwoHosts hosts(group);
    auto net = sharded_mlp();
    DistributedDataParallel model(net, hosts.inside);
    ShardedOptimizer<SGD> optimizer(
        net->parameters(), 0.1, hosts.inside, {.replicate_group = hosts.across});
    train_with_change(net, optimizer, group.rank(), group.size(), model, [](Sequential&, int) {});
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                AllOf(HasSubstr("expected the same gradients on every rank"),
                      HasSubstr("DistributedDataParallel")));
}

}  // namespace
}  // namespace muster::testing
