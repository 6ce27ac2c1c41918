#include "muster/cluster/late_requests.h"

#include <gmock/gmock.h>

namespace muster {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

bool is_any(int /*rank*/) {
  return true;
}

bool is_even(int rank) {
  return rank % 2 == 0;
}

TEST(LateRequests, AreAboutTheRanksOfAHost) {
  const auto now = Clock::now();
  LateRequests late;
  late.add({.attempt = 0, .ranks = {1, 2}}, now);
  late.add({.attempt = 0, .ranks = {2, 4}}, now);
  late.add({.attempt = 3, .ranks = {5}}, now);
  const LateRequest even{.attempt = 0, .ranks = {2, 4}};
  EXPECT_THAT(late.about(is_even), ElementsAre(even));
  late.remove(even);
  EXPECT_THAT(late.about(is_any),
              ElementsAre(LateRequest{.attempt = 0, .ranks = {1}},
                          LateRequest{.attempt = 3, .ranks = {5}}));
}

// A rank that waits again is asked about again.
TEST(LateRequests, GoWhenNobodyWaitsAnyMore) {
  const auto then = Clock::now();
  LateRequests late;
  late.add({.attempt = 0, .ranks = {1, 2}}, then);
  late.add({.attempt = 1, .ranks = {1}}, then);
  late.add({.attempt = 0, .ranks = {2}}, then + seconds(20));
  late.forget_before(then);
  EXPECT_EQ(late.about(is_any).size(), 2U);
  late.forget_before(then + seconds(1));
  EXPECT_THAT(late.about(is_any), ElementsAre(LateRequest{.attempt = 0, .ranks = {2}}));
  late.forget_before(then + seconds(21));
  EXPECT_THAT(late.about(is_any), IsEmpty());
  EXPECT_TRUE(late.empty());
}

}  // namespace
}  // namespace muster
