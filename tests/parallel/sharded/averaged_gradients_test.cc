// ZeRO-1 has each part trained by one rank's gradients: they must be the mean of all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/pipeline/stages.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGD;

constexpr int64_t kAveragedSteps = 5;

// Some steps of a model on each rank's own samples; `average` comes between backward and step.
template <class Forward, class Average>
void train_on_own_samples(ProcessGroup& group,
                          torch::optim::Optimizer& optimizer,
                          Forward&& forward,
                          const Average& average) {
  at::set_num_threads(1);
  for (int64_t step = 0; step < kAveragedSteps; ++step) {
    const auto batch = mlp_batch(step).of(group.rank(), group.size());
    optimizer.zero_grad();
    sharded_loss(forward(batch.x), batch.y).backward();
    average();
    optimizer.step();
  }
}

std::vector<at::Tensor> trained_by_one_process() {
  auto net = sharded_mlp();
  SGD optimizer(net->parameters(), 0.1);
  for (int64_t step = 0; step < kAveragedSteps; ++step) {
    optimizer.zero_grad();
    sharded_loss(net->forward(mlp_batch(step).x), mlp_batch(step).y).backward();
    optimizer.step();
  }
  return values_of(*net);
}

TEST(AveragedGradients, OfABareModelAreAnErrorOnEachRank) {
  for (const char* backend : {"shm", "gloo"}) {
    run_ranks(3,
              [](ProcessGroup& group) {
                auto net = sharded_mlp();
                ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
                const auto before = values_of(*net);
                const std::string text = failure_text([&] {
                  train_on_own_samples(
                      group, optimizer, [&](const auto& x) { return net->forward(x); }, [] {});
                });
                EXPECT_THAT(
                    text,
                    AllOf(HasSubstr("sharded optimizer: expected the same gradients on every "
                                    "rank, averaged over them, got others on rank 1"),
                          HasSubstr("wrap the model that has the parameter in "
                                    "DistributedDataParallel"),
                          HasSubstr("{.gradients = true}")));
                EXPECT_EQ(farthest_apart(before, net->parameters()), 0);  // nothing was stepped
              },
              {.backend = backend});
  }
}

TEST(AveragedGradients, AreRefusedAsOftenAsTheProgramGoesOn) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    sharded_loss(net->forward(batch.x), batch.y).backward();
    for (int64_t step = 0; step < kAveragedSteps; ++step)
      EXPECT_THAT(failure_text([&] { optimizer.step(); }),
                  HasSubstr("expected the same gradients on every rank"));
  });
}

TEST(AveragedGradients, AreComparedWithTheFirstRankThatHasThem) {
  run_ranks(3, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
    const auto batch = mlp_batch(0).of(group.rank(), group.size());
    if (group.rank() > 0)
      sharded_loss(net->forward(batch.x), batch.y).backward();
    EXPECT_THAT(failure_text([&] { optimizer.step(); }),
                HasSubstr("got others on rank 2 than on rank 1"));
  });
}

TEST(AveragedGradients, OfAParameterThatTheWrapperIgnoresAreAnError) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"2.bias"}});
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
    const std::string text =
        failure_text([&] { train_on_own_samples(group, optimizer, model, [] {}); });
    EXPECT_THAT(text, AllOf(HasSubstr("of a parameter of shape [29]"), HasSubstr("not ignore it")));
  });
}

// Gradients of other parameters than those given are nobody's here.
TEST(AveragedGradients, MayLackThoseThatTheOptimizerHasNot) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = sharded_mlp();
    DistributedDataParallel model(net, group, {.ignored_parameters = {"4.weight", "4.bias"}});
    const auto all = net->parameters();
    ShardedOptimizer<SGD> optimizer(
        std::vector<at::Tensor>(all.begin(), all.begin() + 4), 0.1, group);
    EXPECT_EQ(failure_text([&] { train_on_own_samples(group, optimizer, model, [] {}); }),
              "nothing");
  });
}

TEST(AveragedGradients, MayBeThoseThatTheProgramHasAveraged) {
  const auto expected = trained_by_one_process();
  const std::vector<std::function<at::Tensor(ProcessGroup&, const at::Tensor&)>> means = {
      [](ProcessGroup& group, const at::Tensor& gradient) {
        const at::Tensor sum = gradient.clone();
        group.all_reduce(sum);
        return sum / group.size();
      },
      // Each rank adds them in an order of its own, so that they differ by roundings.
      [](ProcessGroup& group, const at::Tensor& gradient) {
        const at::Tensor all = at::empty({group.size(), gradient.numel()});
        group.all_gather(all, gradient.reshape({1, -1}).contiguous());
        return all.roll(group.rank(), 0).mean(0).view(gradient.sizes()).clone();
      }};
  for (const auto& mean : means) {
    run_ranks(3, [&](ProcessGroup& group) {
      auto net = sharded_mlp();
      ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
      train_on_own_samples(
          group,
          optimizer,
          [&](const auto& x) { return net->forward(x); },
          [&] {
            for (const auto& parameter : net->parameters())
              parameter.mutable_grad() = mean(group, parameter.grad());
          });
      EXPECT_LE(farthest_apart(expected, net->parameters()), 2e-6);
    });
  }
}

TEST(AveragedGradients, MayBeThoseOfOneRank) {
  const auto expected = trained_by_one_process();
  run_ranks(1, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group);
    train_on_own_samples(group, optimizer, [&](const auto& x) { return net->forward(x); }, [] {});
    EXPECT_EQ(farthest_apart(expected, net->parameters()), 0);
  });
}

// Replicas of a stage divide the state of its optimizer, and have the pipeline average.
TEST(AveragedGradients, MayBeThoseOfThePipelinesReplicas) {
  const auto expected = trained_by_one_process();
  for (const bool averages : {true, false}) {
    run_ranks(4, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      Mesh mesh(group, {{"dp", 2}, {"pp", 2}});
      auto net = sharded_mlp();
      const auto all = net->parameters();
      auto stages = cut_into_stages(net, cut_at(net->size(), {2}));
      Pipeline pipeline({stages[mesh.rank("pp")]},
                        mesh.group("pp"),
                        {.schedule = one_f_one_b(2, 2), .loss = sharded_loss});
      if (averages)
        pipeline.average_over(mesh.group("dp"));
      ShardedOptimizer<SGD> optimizer(pipeline.parameters(), 0.1, mesh.group("dp"));
      const std::string text = failure_text([&] {
        for (int64_t step = 0; step < kAveragedSteps; ++step) {
          const auto batch = mlp_batch(step).of(mesh.rank("dp"), 2);
          optimizer.zero_grad();
          pipeline.step(batch.x, batch.y);
          optimizer.step();
        }
      });
      if (!averages) {
        EXPECT_THAT(text, HasSubstr("expected the same gradients on every rank"));
        return;
      }
      EXPECT_EQ(text, "nothing");
      const bool is_first = mesh.rank("pp") == 0;
      for (size_t i = is_first ? 0 : 2; i < (is_first ? 2U : 6U); ++i)
        EXPECT_LE((all[i] - expected[i]).abs().max().item<float>(), 2e-6) << i;
    });
  }
}

}  // namespace
}  // namespace muster::testing
