#include "muster/launch/straggler_table.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// Of ten steps: other, compute, communication, data, checkpoint, in seconds.
RankTimes rank_with(int rank, const char* host, std::array<double, kActivityCategories> seconds) {
  return {.rank = rank,
          .host = host,
          .device = rank == 10 ? "GPU 1" : "GPU 0",
          .steps = 10,
          .seconds = seconds};
}

Breakdown with_straggler() {
  Breakdown breakdown{.ranks = {rank_with(0, "a", {1, 0.5, 1.1, 0.1, 0}),
                                rank_with(2, "a", {1, 0.5, 1.2, 0, 0}),
                                rank_with(10, "node-b", {1, 1.2, 0, 0.4, 0.1})}};
  breakdown.straggler = {.rank = 10, .seconds_a_step = 0.11};
  return breakdown;
}

TEST(StragglerTable, TheSlowestRankComesFirst) {
  EXPECT_EQ(
      straggler_table(with_straggler()),
      "rank  host    device  own time of a step  compute     data  checkpoint  waits for others\n"
      "  10  node-b  GPU 1               170 ms   120 ms  40.0 ms     10.0 ms           0.00 ms\n"
      "   0  a       GPU 0              60.0 ms  50.0 ms  10.0 ms     0.00 ms            110 ms\n"
      "   2  a       GPU 0              50.0 ms  50.0 ms  0.00 ms     0.00 ms            120 ms\n");
}

TEST(StragglerTable, SaysHowManyAreLeftOut) {
  const std::string table = straggler_table(with_straggler(), 2);
  EXPECT_TRUE(table.ends_with("and 1 faster rank\n")) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);
}

TEST(StragglerTable, IsEmptyWhereNoRankHoldsTheOthersUp) {
  Breakdown breakdown = with_straggler();
  breakdown.straggler->seconds_a_step = 1e-6;
  EXPECT_EQ(straggler_table(breakdown), "") << "a difference of 0.00 ms";
  breakdown.straggler.reset();
  EXPECT_EQ(straggler_table(breakdown), "");
}

}  // namespace
}  // namespace muster
