// Batch shares that follow the ranks' speeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <thread>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/data/loader.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/train/rebalance.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;

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

// The losses of global batches of 24 over more than an epoch. `rebalances`: rank 1 says that it
// takes twice as long a sample.
std::vector<double> train(ProcessGroup& group,
                          bool rebalances,
                          std::vector<int64_t>* shares = nullptr) {
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
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const double waited = seconds_since(start);
    const auto loss = torch::mse_loss(output, batch.y) * batch.weight;
    loss.backward();
    EXPECT_GE(model.reducer().compute_seconds(), waited);
    optimizer.step();
    at::Tensor mean = loss.detach().to(at::kDouble) / 2;
    group.all_reduce(mean);
    losses.push_back(mean.item<double>());
    const double seconds = 400e-6 * static_cast<double>(batch.samples * (1 + group.rank()));
    if (rebalances && rebalance.step(seconds, batch.samples))
      loader.set_shares(rebalance.shares());
  }
  if (shares != nullptr)
    *shares = rebalance.shares();
  return losses;
}

// The ideal of two ranks, one half as fast, is 16 and 8 of 24: both take the same time.
TEST(Rebalance, ASlowRankGetsLessAndTheLossesStay) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto even = train(group, false);
    std::vector<int64_t> shares;
    const auto rebalanced = train(group, true, &shares);
    EXPECT_THAT(shares, ElementsAre(16, 8));
    ASSERT_EQ(even.size(), rebalanced.size());
    for (size_t step = 0; step < even.size(); ++step)
      EXPECT_NEAR(even[step], rebalanced[step], 1e-5) << "step " << step;
    EXPECT_LT(even.back(), even.front());
  });
}

struct Index : Dataset<at::Tensor> {
  int64_t size() const override { return 100; }
  at::Tensor get(int64_t index, muster::Generator& /*rng*/) const override {
    return torch::tensor(index);
  }
};

// Rank 1 says that it takes so many times as long a sample as rank 0.
struct Driven {
  Driven(ProcessGroup& group,
         const std::string& folder,
         bool resume,
         std::vector<int64_t> shares = {6, 6})
      : sampler(100, {.num_replicas = group.size(), .rank = group.rank(), .seed = 3}),
        loader(Index(), sampler, {.batch_size = 6, .workers = 1}),
        rebalance(group, std::move(shares), {.every = 4}),
        checkpoints(group, {.folder = folder, .resume = resume}) {
    rebalance.drive(loader);
    checkpoints.add("model", net).add("data", loader).add("rebalance", rebalance);
    checkpoints.restore();
  }

  // This rank's samples of every step.
  std::vector<std::vector<int64_t>> run(ProcessGroup& group, int64_t until) {
    std::vector<std::vector<int64_t>> seen;
    for (const auto& batch : loader.steps(until)) {
      (void)static_cast<double>(batch.weight);
      seen.emplace_back();
      for (int64_t i = 0; i < batch.numel(); ++i)
        seen.back().push_back(batch[i].template item<int64_t>());
      // Slow at first, fast later on, with a step that nobody has measured.
      const int64_t step = loader.position().step;
      const double slow = step < 13 ? 2 : 0.2;
      const double seconds = group.rank() == 0 ? 1 : slow + 0.01 * static_cast<double>(step % 4);
      rebalance.step(step == 6 ? 0 : seconds * static_cast<double>(batch.samples), batch.samples);
    }
    return seen;
  }

  torch::nn::Linear net{1, 1};
  DistributedSampler sampler;
  DataLoader<Index> loader;
  Rebalance rebalance;
  Checkpoints checkpoints;
};

// Of both ranks, step by step: what is rank 0's and what rank 1's is the shares' business.
std::vector<std::vector<int64_t>> of_all_ranks(ProcessGroup& group,
                                               const std::vector<std::vector<int64_t>>& mine) {
  std::vector<std::vector<int64_t>> steps;
  for (const auto& samples : mine) {
    const at::Tensor used = at::zeros({100}, at::kLong);
    for (const int64_t sample : samples)
      used[sample] += 1;
    group.all_reduce(used);
    steps.emplace_back();
    for (int64_t sample = 0; sample < 100; ++sample)
      steps.back().insert(
          steps.back().end(), static_cast<size_t>(used[sample].item<int64_t>()), sample);
  }
  return steps;
}

// Of 9 steps an epoch; shares are compared after every fourth.
TEST(Rebalance, AResumedRunHasTheSavedSharesAndTheGlobalBatchesOfACalmOne) {
  for (const int64_t stop : {3, 4, 7, 9, 12, 15, 17}) {
    const test::TempFolder folder;
    run_ranks(2, [&](ProcessGroup& group) {
      Driven calm(group, folder.path(), false);
      const auto all = of_all_ranks(group, calm.run(group, 24));
      EXPECT_THAT(calm.rebalance.shares(), ElementsAre(2, 10));
      Driven first(group, folder.path(), false);
      auto seen = first.run(group, stop);
      first.checkpoints.save(stop);
      Driven second(group, folder.path(), true);
      EXPECT_EQ(second.rebalance.shares(), first.rebalance.shares());
      EXPECT_EQ(second.loader.position(), first.loader.position());
      for (const auto& batch : second.run(group, 24))
        seen.push_back(batch);
      EXPECT_EQ(of_all_ranks(group, seen), all) << "stopped after " << stop;
    });
  }
}

TEST(Rebalance, SavedSharesOfOtherRanksAreLeftAlone) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    Driven two(group, folder.path(), false);
    two.run(group, 5);
    EXPECT_THAT(two.rebalance.shares(), ElementsAre(8, 4));
    two.checkpoints.save(5);
  });
  run_ranks(3, [&](ProcessGroup& group) {
    Driven three(group, folder.path(), true, {6, 6, 6});
    EXPECT_THAT(three.rebalance.shares(), ElementsAre(6, 6, 6));
    EXPECT_EQ(three.run(group, 6).front().size(), 6U);
  });
}

TEST(Rebalance, SharesOfAnotherSumAreRefused) {
  const auto data = std::make_shared<const Points>();
  const auto sampler =
      std::make_shared<DistributedSampler>(data->size(), SamplerOptions{.num_replicas = 2});
  DataLoader loader(data, sampler, {.batch_size = 12});
  loader.set_shares({12, 11});
  EXPECT_THROW(loader.begin(), Error);
}

}  // namespace
}  // namespace muster::testing
