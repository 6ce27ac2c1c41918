// Bucket sizes that are found by trying: which one is kept, and that training is the same
// meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "muster/base/error.h"
#include "muster/ddp/bucket_trial.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

// As a reducer goes through it: `seconds_of` a backward with a cap.
template <class Seconds>
void run_trial(BucketTrial& trial, Seconds&& seconds_of) {
  for (int steps = 0; steps < 1000; ++steps) {
    trial.count(seconds_of(trial.cap().mib().value_or(25)));
    if (!trial.has_enough())
      continue;
    if (!trial.next())
      return;
    trial.begin_buckets();
  }
  FAIL() << "the trial does not end";
}

TEST(BucketTrial, TheShortestBackwardOfTheSlowestRankIsKept) {
  BucketTrial trial(BucketCap::automatic(), 40 * kMiB);
  run_trial(trial, [](double mib) { return mib == 1 ? 0.5 : mib == 4 ? 0.6 : 1; });
  EXPECT_THAT(trial.medians(), ::testing::ElementsAre(1, 1, 0.6, 0.5));
  // On the other rank 1 MiB is the worst.
  EXPECT_THAT(trial.decide({1, 1, 0.6, 0.5, 1, 1, 0.7, 2}), HasSubstr("buckets of 4 MiB"));
  EXPECT_EQ(trial.cap().mib(), 4);
  EXPECT_FALSE(trial.running() || trial.has_enough());
}

TEST(BucketTrial, PyTorchsSizeStaysWhereNoneIsClearlyBetter) {
  BucketTrial trial(BucketCap::automatic(), 40 * kMiB);
  run_trial(trial, [](double mib) { return mib == 4 ? 0.99 : 1; });
  EXPECT_THAT(trial.decide(trial.medians()), HasSubstr("PyTorch's"));
  EXPECT_EQ(trial.cap().mib(), std::nullopt);
}

TEST(BucketTrial, NothingIsTriedOfANumberOrASmallModel) {
  EXPECT_FALSE(BucketTrial(BucketCap(), 40 * kMiB).running());
  EXPECT_EQ(BucketTrial(BucketCap(3), 40 * kMiB).cap().mib(), 3);
  EXPECT_FALSE(BucketTrial(BucketCap(3), 40 * kMiB).running());
  EXPECT_FALSE(BucketTrial(BucketCap::automatic(), kMiB).running());
}

class AutomaticBuckets : public ::testing::TestWithParam<const char*> {};

// Over all of the trial and beyond; the weights are those of training with one size.
TEST_P(AutomaticBuckets, TrainTheSameModel) {
  run_ranks(2,
            [](ProcessGroup& group) {
              const auto train = [&](const BucketCap& cap) {
                torch::nn::Sequential net(
                    torch::nn::Linear(8, 600),
                    torch::nn::Linear(600, 600),
                    torch::nn::Linear(600, 2));  // 1.4 MiB: two sizes are tried
                for (auto& parameter : net->parameters())
                  parameter.data().copy_(
                      torch::linspace(-0.02, 0.02, parameter.numel()).view_as(parameter));
                DistributedDataParallel model(net, group, {.bucket_cap_mb = cap});
                torch::optim::SGD optimizer(net->parameters(), 0.001);
                const auto loss = [&](int step) {
                  return model((torch::arange(32).view({4, 8}) * (step + 1) + group.rank()).sin())
                      .square()
                      .mean();
                };
                for (int step = 0; step < 30; ++step) {
                  optimizer.zero_grad();
                  if (step == 5) {
                    const auto guard = model.no_sync();
                    loss(100).backward();
                  }
                  loss(step).backward();
                  optimizer.step();
                }
                return torch::cat({net->parameters()[0].flatten(), net->parameters()[2].flatten()})
                    .detach();
              };
              const auto plain = train({}), tried = train(BucketCap::automatic());
              EXPECT_TRUE(plain.isfinite().all().item<bool>());
              EXPECT_TRUE(torch::equal(plain, tried)) << (tried - plain).abs().max().item<float>();
            },
            {.backend = GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Over, AutomaticBuckets, ::testing::Values("gloo", "shm"));

// A rank that shadows has no backwards of its own: those inside of join() count on no rank.
TEST_P(AutomaticBuckets, RestInsideOfJoin) {
  run_ranks(
      2,
      [](ProcessGroup& group) {
        torch::nn::Sequential net(
            torch::nn::Linear(8, 600), torch::nn::Linear(600, 600), torch::nn::Linear(600, 2));
        DistributedDataParallel model(net, group, {.bucket_cap_mb = BucketCap::automatic()});
        const auto inputs = [&](int step) {
          return (torch::arange(32).view({4, 8}) * (step + 1) + group.rank()).sin();
        };
        model.join([&] {
          for (int step = 0; step < 1 + 6 * group.rank(); ++step) {
            drop_gradients(*net);
            model(inputs(step)).square().mean().backward();
          }
        });
        for (int step = 0; step < 30; ++step) {
          drop_gradients(*net);
          const auto expected =
              mean_gradients(group, net->forward(inputs(step)).square().mean(), net->parameters());
          model(inputs(step)).square().mean().backward();
          expect_gradients(net->parameters(), expected);
        }
      },
      {.backend = GetParam()});
}

TEST(BucketCap, IsASizeThatMemoryCanHave) {
  for (const double mib : {-1.0, 1e300, HUGE_VAL, std::nan("")}) {
    for (const auto& failure : failures_of_ranks(2, [&](ProcessGroup& group) {
           DistributedDataParallel model(two_layers(), group, {.bucket_cap_mb = mib});
         }))
      EXPECT_THAT(message_of(failure), HasSubstr("expected a size in MiB as bucket_cap_mb, got "));
  }
  run_ranks(2, [](ProcessGroup& group) {
    const auto net = two_layers();
    DistributedDataParallel model(net, group, {.bucket_cap_mb = 0});
    model(batch_of(2)).sum().backward();
    EXPECT_TRUE(net->parameters()[0].grad().defined());
  });
}

TEST(AutomaticBuckets, AreRefusedWithAStaticGraph) {
  run_ranks(2, [](ProcessGroup& group) {
    try {
      DistributedDataParallel model(
          two_layers(), group, {.bucket_cap_mb = BucketCap::automatic(), .static_graph = true});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("got BucketCap::automatic()"));
    }
  });
}

}  // namespace
}  // namespace muster::testing
