#include "muster/placement/batch_shares.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <random>

#include "muster/base/error.h"

namespace muster {
namespace {

using testing::ElementsAre;

TEST(BatchShares, InProportion) {
  EXPECT_THAT(batch_shares(8, {1, 1}), ElementsAre(4, 4));
  EXPECT_THAT(batch_shares(8, {3, 1}), ElementsAre(6, 2));
  EXPECT_THAT(batch_shares(400, {100, 90, 80, 110}), ElementsAre(105, 95, 84, 116))
      << "exact: 105.26 94.74 84.21 115.79";
}

TEST(BatchShares, RemaindersGoToTheLargestThenTheFirst) {
  EXPECT_THAT(batch_shares(7, {1, 1, 1}), ElementsAre(3, 2, 2));
  EXPECT_THAT(batch_shares(8, {1, 1, 1}), ElementsAre(3, 3, 2));
  EXPECT_THAT(batch_shares(10, {1, 1.9, 1}), ElementsAre(3, 5, 2)) << "exact: 2.56 4.87 2.56";
}

TEST(BatchShares, AtLeastOneEach) {
  EXPECT_THAT(batch_shares(4, {1000, 1, 1, 1}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(batch_shares(10, {1000, 1, 1, 1}), ElementsAre(7, 1, 1, 1));
  EXPECT_THAT(batch_shares(5, {1e-300, 1e300, 1e300}), ElementsAre(1, 2, 2));
  try {
    batch_shares(3, {1, 1, 1, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(),
                 "--global-batch: expected at least one sample for each of 4 ranks, got 3; give a "
                 "larger batch or "
                 "fewer ranks");
  }
}

TEST(BatchShares, AlwaysSumExactlyAndStayNear) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<double> weights(1 + random() % 40);
    for (double& weight : weights)
      weight = std::ldexp(1 + static_cast<double>(random() % 1000), static_cast<int>(seed % 30));
    const auto batch =
        static_cast<int64_t>(weights.size() + random() % (seed % 2 == 0 ? 100 : 1'000'000'000'000));
    const auto shares = batch_shares(batch, weights);
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t{0}), batch) << "seed " << seed;
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < shares.size(); ++i) {
      const double exact = static_cast<double>(batch) * weights[i] / sum;
      ASSERT_GE(shares[i], 1);
      if (batch > 100'000) {
        ASSERT_LE(std::abs(static_cast<double>(shares[i]) - exact), 1.01) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace muster
