#include "muster/launch/replacement.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

RankExit killed_rank(int rank) {
  RankExit exit;
  exit.rank = rank;
  exit.signal = SIGKILL;
  exit.cause = "killed by SIGKILL";
  return exit;
}

TEST(ObstacleToReplacing, NoneWhereOthersGoOn) {
  EXPECT_EQ(obstacle_to_replacing({.failed = {killed_rank(2)}, .left = {0, 1}}), "");
}

TEST(ObstacleToReplacing, NobodyIsLeft) {
  EXPECT_EQ(obstacle_to_replacing({.failed = {killed_rank(0)}, .left = {}}),
            "no rank is left to go on");
}

TEST(ObstacleToReplacing, OneHasEnded) {
  const RankFailures failures{.failed = {killed_rank(2)}, .left = {1}, .some_have_ended = true};
  EXPECT_EQ(obstacle_to_replacing(failures), "another rank has ended already");
}

TEST(ObstacleToReplacing, ARankThatLeavesForTheSakeOfAnotherCannotCome) {
  RankExit consequence;
  consequence.rank = 1;
  consequence.exit_code = 1;
  consequence.message = "peer_failed: all_reduce #3: rank 2 (process 7) ended";
  consequence.facts.code = "peer_failed";
  const RankFailures failures{.failed = {killed_rank(2), consequence}, .left = {0}};
  EXPECT_THAT(obstacle_to_replacing(failures),
              HasSubstr("rank 1 ended because it had lost another"));
}

TEST(DescribeReplacing, SaysWhatFailedAndWhatIsDone) {
  EXPECT_EQ(describe_replacing({killed_rank(2)}, milliseconds(0), 1, 3),
            "rank 2: killed by SIGKILL; a replacement is started, the others keep their processes "
            "(1 of 3 restarts)");
  EXPECT_EQ(
      describe_replacing({killed_rank(2), killed_rank(0)}, milliseconds(2'000), 2, 3),
      "rank 2: killed by SIGKILL, rank 0: killed by SIGKILL; replacements are started in 2.0s, the "
      "others keep their processes (2 of 3 restarts)");
}

}  // namespace
}  // namespace muster
