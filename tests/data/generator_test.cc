#include "muster/data/generator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "muster/base/error.h"

namespace muster {
namespace {

TEST(Generator, DependsOnSeedEpochAndIndexAlone) {
  std::set<uint64_t> firsts;
  for (const int64_t seed : {0, 1})
    for (const int64_t epoch : {0, 1, 2})
      for (int64_t index = 0; index < 100; ++index) {
        Generator one(seed, epoch, index), same(seed, epoch, index);
        const uint64_t first = uint64_t{one()} << 32 | one();
        EXPECT_EQ(first, uint64_t{same()} << 32 | same());
        firsts.insert(first);
        EXPECT_TRUE(torch::equal(torch::rand({4}, one.torch()), torch::rand({4}, same.torch())));
      }
  EXPECT_EQ(firsts.size(), 600);
}

TEST(Generator, HasTheDistributionsItSays) {
  double sum = 0, squares = 0, heads = 0, low = 1, high = 0;
  std::vector<int> dice(6);
  constexpr int kDraws = 60000;
  for (int index = 0; index < kDraws; ++index) {
    Generator rng(3, 1, index);
    const double normal = rng.normal(), uniform = rng.uniform(2, 5);
    sum += normal;
    squares += normal * normal;
    heads += rng.chance(0.25) ? 1 : 0;
    low = std::min(low, (uniform - 2) / 3);
    high = std::max(high, (uniform - 2) / 3);
    ++dice[static_cast<size_t>(rng.integer(6))];
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
  EXPECT_NEAR(heads / kDraws, 0.25, 0.01);
  EXPECT_GE(low, 0);
  EXPECT_LT(low, 0.001);
  EXPECT_LT(high, 1);
  EXPECT_GT(high, 0.999);
  for (const int count : dice)
    EXPECT_NEAR(count, kDraws / 6.0, 400);
}

TEST(Generator, RefusesAnEmptyRange) {
  EXPECT_THROW(Generator(0, 0, 0).integer(0), Error);
  EXPECT_EQ(Generator(0, 0, 0).integer(1), 0);
}

}  // namespace
}  // namespace muster
