#include "muster/trace/breakdown.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace muster {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::SizeIs;

constexpr int64_t kMillisecond = 1'000'000;

// Of 100 steps: other, compute, communication, data, checkpoint, in milliseconds.
ActivityView rank_with(int rank,
                       std::array<int64_t, kActivityCategories> milliseconds,
                       int64_t steps = 100) {
  ActivityView view{
      .rank = rank, .world_size = 4, .host = "box", .device = "cpu:1", .steps = steps};
  view.closed_ns = view.category_since_ns = 1;
  for (size_t i = 0; i < milliseconds.size(); ++i)
    view.totals_ns[i] = milliseconds[i] * kMillisecond;
  return view;
}

TEST(Breakdown, SharesOfAllRanks) {
  const auto found = breakdown_of(
      {rank_with(0, {100, 600, 200, 50, 50}), rank_with(1, {100, 600, 200, 50, 50})}, 0);
  ASSERT_TRUE(found);
  EXPECT_THAT(found->shares,
              ElementsAre(DoubleNear(0.1, 1e-9),
                          DoubleNear(0.6, 1e-9),
                          DoubleNear(0.2, 1e-9),
                          DoubleNear(0.05, 1e-9),
                          DoubleNear(0.05, 1e-9)));
  EXPECT_FALSE(found->straggler);
  EXPECT_THAT(found->lines(),
              ElementsAre("time of 100 steps on 2 ranks: compute 60 %, communication 20 %, data 5 "
                          "%, checkpoint 5 %, "
                          "other 10 % (communication: the time in which a rank waits for others)"));
}

TEST(Breakdown, ARankThatWasKilledCountsUntilItsLastSign) {
  ActivityView killed = rank_with(1, {0, 500, 0, 0, 0});
  killed.closed_ns.reset();
  killed.category = Category::compute;
  killed.category_since_ns = 10 * kMillisecond;
  killed.step_ns = 110 * kMillisecond;
  const auto found = breakdown_of({rank_with(0, {0, 600, 0, 0, 0}), killed}, {});
  EXPECT_DOUBLE_EQ(found->ranks.at(1).seconds.at(1), 0.6);
  EXPECT_FALSE(found->straggler);
}

TEST(Breakdown, ARankThatWasReplacedTookFewerSteps) {
  const auto found =
      breakdown_of({rank_with(0, {0, 600, 0, 0, 0}), rank_with(1, {0, 300, 0, 0, 0}, 50)}, {});
  EXPECT_FALSE(found->straggler);
}

TEST(Breakdown, TheRankThatTheOthersWaitFor) {
  const auto found = breakdown_of({rank_with(0, {0, 600, 400, 0, 0}),
                                   rank_with(1, {0, 900, 100, 0, 0}),
                                   rank_with(2, {0, 600, 400, 0, 0})},
                                  0);
  ASSERT_TRUE(found->straggler);
  EXPECT_EQ(found->straggler->rank, 1);
  EXPECT_EQ(found->straggler->category, Category::compute);
  EXPECT_DOUBLE_EQ(found->straggler->ratio, 1.5);
  EXPECT_EQ(found->lines().at(1),
            "the others wait for rank 1 (host box, cpu:1): 3 ms a step longer than the median "
            "rank, computing");
  const auto json = nlohmann::json::parse(found->json());
  EXPECT_EQ(json["straggler"]["rank"], 1);
  EXPECT_EQ(json["ranks"][1]["seconds"]["compute"], 0.9);
}

TEST(Breakdown, AStragglerThatWaitsForItsData) {
  const auto found =
      breakdown_of({rank_with(0, {0, 600, 400, 0, 0}), rank_with(1, {0, 600, 100, 300, 0})}, 0);
  EXPECT_EQ(found->straggler->rank, 1);
  EXPECT_EQ(found->straggler->category, Category::data);
}

// Rank 0 prints, evaluates and whatever else there is outside of steps.
TEST(Breakdown, OtherTimeMakesNoStraggler) {
  EXPECT_FALSE(
      breakdown_of({rank_with(0, {900, 600, 0, 0, 0}), rank_with(1, {0, 600, 900, 0, 0})}, 0)
          ->straggler);
}

TEST(Breakdown, FewStepsSayNothing) {
  EXPECT_FALSE(breakdown_of({rank_with(0, {1, 1, 1, 1, 1}, 19)}, 0));
  EXPECT_FALSE(breakdown_of({}, 0));
  EXPECT_THAT(breakdown_of({rank_with(0, {1, 1, 1, 1, 1}, 20), rank_with(1, {}, 0)}, 0)->ranks,
              SizeIs(1));
}

TEST(Breakdown, TimesThatCannotBeAreNone) {
  ActivityView view = rank_with(0, {0, 100, 0, 0, 0});
  view.totals_ns[2] = INT64_MIN;
  view.totals_ns[3] = INT64_MAX;
  EXPECT_DOUBLE_EQ(breakdown_of({view}, 0)->shares[1], 1.0);
}

}  // namespace
}  // namespace muster
