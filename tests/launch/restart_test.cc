#include "muster/launch/restart.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace muster {
namespace {

using std::chrono::seconds;

TEST(BackOff, DoublesUpToAMinute) {
  BackOff back_off;
  EXPECT_EQ(back_off.pause_after(seconds(1)), seconds(0)) << "the first failure is forgiven";
  for (const int pause : {1, 2, 4, 8, 16, 32, 60, 60, 60})
    EXPECT_EQ(back_off.pause_after(seconds(1)), seconds(pause));
  EXPECT_EQ(back_off.pause_after(seconds(61)), seconds(0)) << "it ran for a while";
  EXPECT_EQ(back_off.pause_after(seconds(1)), seconds(0));
}

GroupResult failed_group() {
  RankExit exit;
  exit.exit_code = 1;
  return {.exits = {exit}};
}

TEST(Restarts, AreOneBudget) {
  ProcessSet processes;
  GroupResult result = failed_group();
  Restarts restarts(1);
  ASSERT_TRUE(restarts.wanted(result));
  EXPECT_TRUE(restarts.wait(result, processes, Clock::now() - seconds(100), std::nullopt));
  EXPECT_FALSE(restarts.wanted(result)) << "used up";
}

TEST(Restarts, NotAfterASignalOrTheTimeLimit) {
  GroupResult result = failed_group();
  const Restarts restarts(9);
  EXPECT_TRUE(restarts.wanted(result));
  result.stopped_by = 15;
  EXPECT_FALSE(restarts.wanted(result));
  result = failed_group();
  result.timed_out = true;
  EXPECT_FALSE(restarts.wanted(result));
  EXPECT_FALSE(restarts.wanted({})) << "all ended well";
}

TEST(Restarts, TheTimeLimitEndsThePause) {
  ProcessSet processes;
  GroupResult result = failed_group();
  Restarts restarts(9);
  const auto start = Clock::now();
  for (int quick = 0; quick < 9; ++quick)
    restarts.wait(result, processes, Clock::now(), start);
  EXPECT_TRUE(result.timed_out);
  EXPECT_LT(Clock::now() - start, seconds(60))
      << "the pauses are 0 + 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 s";
}

TEST(Restarts, ASignalEndsThePause) {
  ProcessSet processes;
  GroupResult result = failed_group();
  Restarts restarts(9);
  EXPECT_TRUE(restarts.wait(result, processes, Clock::now(), std::nullopt));
  ::raise(SIGTERM);  // the set's handler keeps it
  const auto start = Clock::now();
  for (int quick = 0; quick < 8; ++quick) {
    EXPECT_FALSE(restarts.wait(result, processes, Clock::now(), std::nullopt));
  }
  EXPECT_LT(Clock::now() - start, seconds(60));
  EXPECT_FALSE(result.timed_out);
}

}  // namespace
}  // namespace muster
