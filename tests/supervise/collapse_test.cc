#include "muster/supervise/collapse.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

using std::chrono::milliseconds;

class Collapse : public testing::Test {
 protected:
  void say(int rank, const std::string& line) {
    lines_.add(rank, "[" + std::to_string(rank) + "] ", line + "\n", now_);
  }
  std::string after(milliseconds time) {
    now_ += time;
    return lines_.take(now_);
  }

  Clock::time_point now_ = Clock::now();
  LineCollapser lines_{milliseconds(80)};
};

TEST_F(Collapse, TheSameLineOfSeveralBecomesOne) {
  for (const int rank : {2, 0, 1, 3, 7})
    say(rank, "hello");
  EXPECT_EQ(after(milliseconds(79)), "");
  EXPECT_EQ(after(milliseconds(1)), "[0-3,7] hello ×5\n");
  EXPECT_EQ(lines_.due(), std::nullopt);
}

TEST_F(Collapse, ALineOfOneIsAsItWas) {
  say(4, "only me");
  EXPECT_EQ(after(milliseconds(80)), "[4] only me\n");
}

TEST_F(Collapse, NoStreamsLinesChangePlaces) {
  say(0, "a");
  say(0, "b");
  say(1, "b");
  say(1, "a");  // behind its b, so not together with the first a
  EXPECT_EQ(after(milliseconds(80)), "[0] a\n[0,1] b ×2\n[1] a\n");
}

TEST_F(Collapse, ARankThatSaysItAgainSaysItTwice) {
  say(0, "tick");
  say(0, "tick");
  say(1, "tick");
  EXPECT_EQ(after(milliseconds(80)), "[0,1] tick ×2\n[0] tick\n");
}

TEST_F(Collapse, WhatComesLateStandsAlone) {
  say(0, "hello");
  EXPECT_EQ(after(milliseconds(80)), "[0] hello\n");
  say(1, "hello");
  EXPECT_EQ(lines_.take(now_, true), "[1] hello\n");
}

TEST(NumberRanges, AreShort) {
  EXPECT_EQ(number_ranges({0}), "0");
  EXPECT_EQ(number_ranges({0, 1}), "0,1");
  EXPECT_EQ(number_ranges({0, 1, 2, 5, 6, 7, 9}), "0-2,5-7,9");
}

}  // namespace
}  // namespace muster
