#include "muster/base/late_ranks.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(LateRanks, SaysNothingWhenTheWaitHasFailed) {
  EXPECT_FALSE(LateRanks(std::chrono::milliseconds(0)).due());
}

TEST(LateRanks, SaysNothingAtTheBeginning) {
  EXPECT_FALSE(LateRanks(std::chrono::hours(1)).due());
}

}  // namespace
}  // namespace muster
