#include "muster/data/sample_order.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/batch_sampler.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int64_t> samples_in(const SampleOrder& order, int64_t seed, int64_t epoch) {
  const auto at = order.epoch(seed, epoch);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < order.samples; ++i)
    samples.push_back(at(i));
  return samples;
}

void expect_permutation(std::vector<int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  for (size_t i = 0; i < samples.size(); ++i)
    ASSERT_EQ(samples[i], static_cast<int64_t>(i));
}

TEST(SampleOrder, PseudoShuffledIsAPermutationOfEverySize) {
  for (int64_t size = 1; size <= 300; ++size)
    expect_permutation(samples_in(pseudo_shuffled(size), 1, size));
  expect_permutation(samples_in(pseudo_shuffled(100'003), 7, 0));
  EXPECT_NE(samples_in(pseudo_shuffled(50), 0, 0), samples_in(pseudo_shuffled(50), 0, 1));
  EXPECT_NE(samples_in(pseudo_shuffled(50), 0, 0), samples_in(pseudo_shuffled(50), 1, 0));
}

// Each sample is at each place about as often as at any other.
TEST(SampleOrder, PseudoShuffledIsEven) {
  constexpr int64_t kSize = 10, kEpochs = 20000;
  std::vector<std::vector<int>> seen(kSize, std::vector<int>(kSize));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto samples = samples_in(pseudo_shuffled(kSize), 5, epoch);
    for (size_t i = 0; i < samples.size(); ++i)
      ++seen[i][static_cast<size_t>(samples[i])];
  }
  for (const auto& row : seen)
    for (const int count : row)
      EXPECT_NEAR(count, kEpochs / kSize, 200);
}

// A list of them would take eight petabytes, and going over them once weeks.
TEST(SampleOrder, AQuadrillionSamplesBeginAtOnce) {
  for (int64_t seed = 0; seed < 20; ++seed) {
    DistributedSampler sampler(pseudo_shuffled(1'000'000'000'000'000),
                               {.num_replicas = 8, .rank = 3, .seed = seed});
    const auto epoch = sampler.start();
    EXPECT_NE(epoch.sample(0), epoch.sample(epoch.size - 1));
    EXPECT_EQ(epoch.size, 125'000'000'000'000);
  }
}

// Whatever the size, ranks, shares and the places where a job is resumed with other ranks: every
// sample once.
TEST(SampleOrder, EverySampleOnceOverRanksSharesAndRestarts) {
  std::mt19937 random(11);
  const auto between = [&](int64_t a, int64_t b) {
    return std::uniform_int_distribution<int64_t>(a, b)(random);
  };
  for (int round = 0; round < 400; ++round) {
    const int64_t size = between(1, 200);
    const auto orders = {shuffled(size), pseudo_shuffled(size), in_order(size)};
    const SampleOrder order = *(orders.begin() + between(0, 2));
    std::multiset<int64_t> used;
    int64_t consumed = 0;
    for (int attempt = 0; attempt < 4; ++attempt) {
      const bool is_last = attempt == 3;
      const auto ranks = static_cast<int>(between(1, 5));
      std::vector<int64_t> shares;
      if (between(0, 1) == 1)
        for (int i = 0; i < ranks; ++i)
          shares.push_back(between(1, 4));
      const int64_t even = between(1, 4), batches = between(0, 5);
      int64_t after = consumed;
      for (int rank = 0; rank < ranks; ++rank) {
        auto sampler = std::make_shared<DistributedSampler>(
            order,
            SamplerOptions{
                .num_replicas = ranks, .rank = rank, .seed = 3, .pad = false, .shares = shares});
        sampler->set_epoch(2, consumed, size);
        auto cut = batches_of(sampler, shares.empty() ? even : shares[static_cast<size_t>(rank)]);
        const auto epoch = cut->start();
        for (int64_t batch = 0; batch < epoch.size && (is_last || batch < batches); ++batch) {
          for (const int64_t sample : epoch.samples(batch))
            used.insert(sample);
          after = std::max(after, epoch.consumed_after(batch));
        }
      }
      consumed = after;
    }
    ASSERT_EQ(used.size(), static_cast<size_t>(size)) << "round " << round << " " << order.name;
    expect_permutation({used.begin(), used.end()});
  }
}

TEST(SampleOrder, WeightedIsPyTorchs) {
  const std::vector<double> weights{0.1, 0.9, 0.4, 0, 3, 0.3};
  const auto output = test::run_python("tests/data/pytorch_weighted.py");
  if (!output)
    GTEST_SKIP() << "no Python with PyTorch";
  for (const auto& line : nlohmann::json::parse(*output)) {
    const auto order = weighted(weights, line["samples"], line["replacement"]);
    EXPECT_EQ(samples_in(order, line["seed"], line["epoch"]),
              line["indices"].get<std::vector<int64_t>>());
  }
}

// Ranks have parts of one draw, not a draw each.
TEST(SampleOrder, RanksShareOneWeightedDraw) {
  const auto order = weighted({1, 2, 3, 4, 5, 6, 7}, 1001);
  const auto whole = samples_in(order, 4, 1);
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler sampler(order, {.num_replicas = 3, .rank = rank, .seed = 4});
    sampler.set_epoch(1);
    const auto mine = sampler.indices();
    for (size_t i = 0; i < mine.size(); ++i)
      ASSERT_EQ(mine[i], whole[(static_cast<size_t>(rank) + 3 * i) % whole.size()]);
  }
  EXPECT_EQ(DistributedSampler(order, {}).identity().length, 1001);
  EXPECT_EQ(DistributedSampler(order, {}).dataset_size(), 7);
}

TEST(SampleOrder, ClassesAreBalanced) {
  const auto labels =
      torch::cat({torch::zeros(900), torch::ones(90), torch::full({10}, 2)}).to(torch::kLong);
  std::vector<int> counts(3);
  for (const int64_t sample : samples_in(class_balanced(labels, 30000), 1, 0))
    ++counts[static_cast<size_t>(labels[sample].item<int64_t>())];
  for (const int count : counts)
    EXPECT_NEAR(count, 10000, 300);
  EXPECT_EQ(class_balanced(labels).samples, 1000);
}

TEST(SampleOrder, BucketsHaveLikeLengths) {
  std::mt19937 random(5);
  std::vector<int64_t> lengths(1000);
  for (auto& length : lengths)
    length = 1 + static_cast<int64_t>(random() % 100);
  const auto padding = [&](const std::vector<int64_t>& samples) {
    int64_t wasted = 0;
    for (size_t begin = 0; begin < samples.size(); begin += 10) {
      int64_t longest = 0;
      for (size_t i = begin; i < begin + 10; ++i)
        longest = std::max(longest, lengths[static_cast<size_t>(samples[i])]);
      for (size_t i = begin; i < begin + 10; ++i)
        wasted += longest - lengths[static_cast<size_t>(samples[i])];
    }
    return wasted;
  };
  const auto order = bucketed(shuffled(1000), lengths, 10, 500);
  const auto samples = samples_in(order, 1, 3);
  expect_permutation(samples);
  EXPECT_LT(padding(samples) * 10, padding(samples_in(shuffled(1000), 1, 3)));
  EXPECT_NE(samples, samples_in(order, 1, 4));
}

TEST(SampleOrder, RefusesWhatCannotBeDrawn) {
  EXPECT_THAT(message_of([] { weighted({1, -1}, 2); }), HasSubstr("got -1 for sample 1"));
  EXPECT_THAT(message_of([] { weighted({1, NAN}, 2); }), HasSubstr("for sample 1"));
  EXPECT_THAT(message_of([] { weighted({1e308, 1e308}, 2); }), HasSubstr("sum is finite"));
  EXPECT_THAT(message_of([] { weighted({0, 0}, 2); }),
              HasSubstr("2 weights, none of them above 0"));
  EXPECT_THAT(message_of([] { weighted({1, 1, 0}, 3, false); }), HasSubstr("1 to 2 samples"));
  EXPECT_THAT(message_of([] { pseudo_shuffled(0); }), HasSubstr("at least 1 sample"));
  EXPECT_THAT(message_of([] { class_balanced(torch::zeros({2})); }), HasSubstr("int64"));
  EXPECT_THAT(message_of([] { bucketed(in_order(3), {1, 2}, 1, 1); }),
              HasSubstr("expected 3 lengths"));
}

TEST(SampleOrder, RanksWithOtherWeightsAreFound) {
  DistributedSampler one(weighted({1, 2}, 4), {.num_replicas = 2, .rank = 0});
  DistributedSampler other(weighted({1, 3}, 4), {.num_replicas = 2, .rank = 1});
  EXPECT_THAT(message_of([&] { check_samplers_agree({one.identity(), other.identity()}); }),
              AllOf(HasSubstr("expected the same order on every rank, got weighted(2 numbers "),
                    HasSubstr("\n  rank 0: weighted(2 numbers "),
                    HasSubstr("\n  rank 1: weighted(2 numbers ")));
}

TEST(CostBalanced, EverySampleOnceAndLikeWork) {
  std::mt19937 random(2);
  std::vector<double> costs(997);
  for (auto& cost : costs)
    cost = 1 + static_cast<double>(random() % 1000);
  for (const int ranks : {1, 2, 3, 8}) {
    std::multiset<int64_t> used;
    std::vector<std::vector<double>> work(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto cut =
          cost_balanced(pseudo_shuffled(997),
                        costs,
                        {.num_replicas = ranks, .rank = rank, .global_batch = 64, .seed = 1});
      const auto epoch = cut->start();
      ASSERT_EQ(epoch.size, 16);
      for (int64_t batch = 0; batch < epoch.size; ++batch) {
        double sum = 0;
        const auto mine = epoch.samples(batch);
        EXPECT_EQ(std::ssize(mine), epoch.count(batch));
        for (const int64_t sample : mine) {
          used.insert(sample);
          sum += costs[static_cast<size_t>(sample)];
        }
        work[static_cast<size_t>(rank)].push_back(sum);
      }
    }
    EXPECT_EQ(used.size(), 997);
    expect_permutation({used.begin(), used.end()});
    double slowest = 0, all = 0;
    for (size_t batch = 0; batch < 15; ++batch) {
      double most = 0;
      for (const auto& sums : work) {
        most = std::max(most, sums[batch]);
        all += sums[batch] / ranks;
      }
      slowest += most;
    }
    EXPECT_LT(slowest / all, 1.04) << ranks;
  }
}

TEST(CostBalanced, GoesOnWithOtherRanks) {
  const std::vector<double> costs(100, 1.0);
  std::multiset<int64_t> used;
  int64_t consumed = 0;
  for (const int ranks : {4, 3}) {
    int64_t after = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto cut = cost_balanced(
          shuffled(100), costs, {.num_replicas = ranks, .rank = rank, .global_batch = 12});
      cut->set_epoch(0, consumed, 100);
      const auto epoch = cut->start();
      for (int64_t batch = 0; batch < (ranks == 4 ? 3 : epoch.size); ++batch) {
        for (const int64_t sample : epoch.samples(batch))
          used.insert(sample);
        after = epoch.consumed_after(batch);
      }
    }
    consumed = after;
  }
  EXPECT_EQ(consumed, 100);
  expect_permutation({used.begin(), used.end()});
}

TEST(CostBalanced, EqualCostsAreEqualCounts) {
  for (const double cost : {0.0, 1.0}) {
    for (int rank = 0; rank < 2; ++rank) {
      const auto cut = cost_balanced(in_order(8),
                                     std::vector<double>(8, cost),
                                     {.num_replicas = 2, .rank = rank, .global_batch = 8});
      EXPECT_EQ(cut->start().count(0), 4);
    }
  }
}

// Python's CostBalancedSampler is expected to give the same (tests/python/samplers_test.py).
TEST(CostBalanced, GivesTheCostliestFirst) {
  const std::vector<std::vector<int64_t>> expected = {{2, 4}, {0, 1, 3, 5}};
  for (int rank = 0; rank < 2; ++rank) {
    const auto batches =
        cost_balanced(
            in_order(6), {1, 5, 2, 3, 8, 1}, {.num_replicas = 2, .rank = rank, .global_batch = 6})
            ->start();
    EXPECT_EQ(batches.samples(0), expected[static_cast<size_t>(rank)]);
  }
}

TEST(CostBalanced, RefusesBadArguments) {
  EXPECT_THAT(message_of([] { cost_balanced(in_order(3), {1, 2}, {}); }),
              HasSubstr("expected 3 costs"));
  EXPECT_THAT(
      message_of([] { cost_balanced(in_order(2), {1, 2}, {.num_replicas = 2, .rank = 2}); }),
      HasSubstr("rank 2"));
  EXPECT_THAT(message_of([] {
                cost_balanced(in_order(2), {1, 2}, {.num_replicas = 2, .global_batch = 1});
              }),
              HasSubstr("global_batch 1"));
}

// More than torch.multinomial takes.
TEST(SampleOrder, WeightsMayBeMoreThanTwoToThe24) {
  const int64_t size = (int64_t{1} << 24) + 5;
  std::vector<double> weights(static_cast<size_t>(size), 0.0);
  weights[3] = 1;
  weights[static_cast<size_t>(size - 2)] = 3;
  const auto drawn = [&](int64_t samples, bool replacement, int64_t epoch) {
    const auto epoch_order = weighted(weights, samples, replacement).epoch(7, epoch);
    std::vector<int64_t> all;
    for (int64_t i = 0; i < samples; ++i)
      all.push_back(epoch_order(i));
    return all;
  };
  const auto often = drawn(4000, true, 0);
  const auto of_last = std::count(often.begin(), often.end(), size - 2);
  EXPECT_EQ(of_last + std::count(often.begin(), often.end(), 3), 4000) << "none of weight 0";
  EXPECT_NEAR(static_cast<double>(of_last), 3000, 150);
  EXPECT_EQ(often, drawn(4000, true, 0));
  EXPECT_NE(often, drawn(4000, true, 1));
  auto both = drawn(2, false, 0);
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, (std::vector<int64_t>{3, size - 2}));
}

}  // namespace
}  // namespace muster
