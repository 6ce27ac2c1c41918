// The picture of `muster bench collectives`: its axis of times, also where they are shorter than a
// clock can tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/bench/collectives_bench.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string drawn(const std::vector<double>& times) {
  std::vector<CollectiveTime> rows;
  for (const double us : times)
    rows.push_back({.backend = "shm", .bytes = 4, .count = 1, .us = us});
  return draw_times(rows, "all_reduce");
}

TEST(DrawTimes, HasATickForEachPowerOfTen) {
  EXPECT_THAT(drawn({3, 4000}),
              AllOf(HasSubstr(">1 µs<"), HasSubstr(">100 µs<"), HasSubstr(">10 ms<")));
  EXPECT_THAT(drawn({0.02, 3}),
              AllOf(HasSubstr(">10 ns<"), HasSubstr(">100 ns<"), Not(HasSubstr(">0 µs<"))));
}

TEST(DrawTimes, DrawsTimesThatNoClockTells) {
  for (const std::string& svg : {drawn({0}), drawn({0, 0}), drawn({0, 40})}) {
    EXPECT_THAT(svg, AllOf(HasSubstr(">1 ns<"), HasSubstr(">shm<"), Not(HasSubstr("nan"))));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace muster::testing
