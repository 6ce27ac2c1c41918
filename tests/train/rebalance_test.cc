// Batch shares that follow the ranks' speeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/data/loader.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/train/rebalance.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;

TEST(SharesBySpeed, TheSlowestRankIsReadyAsSoonAsCanBe) {
  EXPECT_THAT(shares_by_speed({1, 2}, 48), ElementsAre(32, 16));
  EXPECT_THAT(shares_by_speed({1, 1, 1}, 10), ElementsAre(4, 3, 3));
  EXPECT_THAT(shares_by_speed({1, 1000}, 8), ElementsAre(7, 1));
  EXPECT_THAT(shares_by_speed({3, 2, 1}, 3), ElementsAre(1, 1, 1));
  EXPECT_THROW(shares_by_speed({1, 1}, 1), Error);
  EXPECT_THROW(shares_by_speed({1, 0}, 8), Error);
}

TEST(Rebalance, SharesChangeForAGainAlone) {
  run_ranks(2, [](ProcessGroup& group) {
    Rebalance rebalance(group, {8, 8}, {.every = 2});
    const auto after = [&](double seconds_a_sample) {
      EXPECT_FALSE(rebalance.step(seconds_a_sample * 8, 8));
      return rebalance.step(seconds_a_sample * 8, 8);
    };
    EXPECT_FALSE(after(group.rank() == 0 ? 1 : 1.04));
    EXPECT_TRUE(after(group.rank() == 0 ? 3 : 1));
    EXPECT_THAT(rebalance.shares(), ElementsAre(4, 12));
    EXPECT_FALSE(after(group.rank() == 0 ? 3 : 1));
    EXPECT_FALSE(after(group.rank() == 0 ? 0 : 1));  // not measured
    EXPECT_THROW(Rebalance(group, {8}), Error);
  });
}

struct Point {
  at::Tensor x, y;
};

struct Points : Dataset<Point> {
  int64_t size() const override { return 1000; }
  Point get(int64_t index, muster::Generator& /*rng*/) const override {
    const auto x = (torch::arange(6) * static_cast<double>(index + 1)).sin().to(at::kFloat);
    return {x, x.sum().reshape({1}).cos()};
  }
};

// The losses of global batches of 24 over more than an epoch. `rebalances`: rank 1 takes twice as long a
// sample.
std::vector<double> train(ProcessGroup& group, bool rebalances, std::vector<int64_t>* shares = nullptr) {
  torch::nn::Sequential net(torch::nn::Linear(6, 5), torch::nn::Tanh(), torch::nn::Linear(5, 1));
  for (auto& parameter : net->parameters())
    parameter.data().copy_(torch::linspace(-0.5, 0.5, parameter.numel()).view_as(parameter));
  DistributedDataParallel model(net, group);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto data = std::make_shared<const Points>();
  const auto sampler = std::make_shared<DistributedSampler>(
      data->size(), SamplerOptions{.num_replicas = 2, .rank = group.rank()});
  DataLoader loader(data, sampler, {.batch_size = 12, .workers = 1});
  Rebalance rebalance(group, {12, 12}, {.every = 5});
  std::vector<double> losses;
  for (const auto& batch : loader.steps(60)) {
    optimizer.zero_grad();
    const auto output = model(batch.x);
    const auto start = Clock::now();
    if (rebalances)
      std::this_thread::sleep_for(std::chrono::microseconds(400) * batch.samples * (1 + group.rank()));
    const double seconds = seconds_since(start);
    const auto loss = torch::mse_loss(output, batch.y) * batch.weight;
    loss.backward();
    EXPECT_GE(model.reducer().compute_seconds(), seconds);
    optimizer.step();
    at::Tensor mean = loss.detach().to(at::kDouble) / 2;
    group.all_reduce(mean);
    losses.push_back(mean.item<double>());
    if (rebalances && rebalance.step(seconds, batch.samples)) loader.set_shares(rebalance.shares());
  }
  if (shares != nullptr) *shares = rebalance.shares();
  return losses;
}

// The ideal of two ranks, one half as fast: 16 and 8 of 24, of which the fast one's 16 make the time.
TEST(Rebalance, ASlowRankGetsLessAndTheLossesStay) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto even = train(group, false);
    std::vector<int64_t> shares;
    const auto rebalanced = train(group, true, &shares);
    const double longest =
        std::max<double>(static_cast<double>(shares[0]), 2.0 * static_cast<double>(shares[1]));
    EXPECT_GE(16 / longest, 0.88) << shares[0] << " and "
                                  << shares[1];  // a sample more or less, of a busy machine
    ASSERT_EQ(even.size(), rebalanced.size());
    for (size_t step = 0; step < even.size(); ++step)
      EXPECT_NEAR(even[step], rebalanced[step], 1e-5) << "step " << step;
    EXPECT_LT(even.back(), even.front());
  });
}

TEST(Rebalance, SharesOfAnotherSumAreRefused) {
  const auto data = std::make_shared<const Points>();
  const auto sampler = std::make_shared<DistributedSampler>(data->size(), SamplerOptions{.num_replicas = 2});
  DataLoader loader(data, sampler, {.batch_size = 12});
  loader.set_shares({12, 11});
  EXPECT_THROW(loader.begin(), Error);
}

}  // namespace
}  // namespace muster::testing
