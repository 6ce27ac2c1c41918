#include "muster/tasks/report/card.h"

#include <gmock/gmock.h>

#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string card_with_log(const std::string& log) {
  const ScratchFolder folder;
  Task task;
  task.name = "digits";
  TaskResult result;
  result.reason = "exit code 4";
  result.attempts.push_back({.host = "box", .exit_code = 4, .log = folder.write("0.log", log)});
  return task_card(task, result);
}

TEST(TaskCard, SaysWhereAndTheLastLines) {
  const std::string card = card_with_log("one\ntwo\n");
  EXPECT_THAT(card,
              HasSubstr("[muster] digits failed: exit code 4\n  where     host box, the CPU\n"));
  EXPECT_THAT(card, HasSubstr("    | one\n    | two\n"));
}

// A log may have anything: a bar that is cut, a program that clears the screen.
TEST(TaskCard, DisturbsNoTerminal) {
  EXPECT_THAT(card_with_log("one\x1b[2J\ttwo\n"), HasSubstr("    | one?[2J\ttwo\n"));
  EXPECT_THAT(card_with_log("\x1b[31mError\x1b[0m: no\n"), HasSubstr("    | Error: no\n"));
  const std::string card =
      card_with_log("[muster] rank 1 failed first: \x1b[2Jexit\n  where     host \x1b]0;b\x07\n");
  EXPECT_THAT(card, HasSubstr("digits failed: rank 1 failed first: ?[2Jexit\n"));
  EXPECT_THAT(card, HasSubstr("\n  where     host ?]0;b?\n"));
  EXPECT_THAT(card_with_log("[muster] rank 1 failed first: exit\n  error     \x1b[1mio\x1b[0m\n"),
              HasSubstr("\n  error     io\n"));
}

TEST(TaskCard, IsTheJobsOwnForATaskOfRanks) {
  const std::string card = card_with_log(
      "[0] noise\n[muster] rank 1 failed first: exit code 4\n  where     host box, cpu:1, pid 7\n"
      "  error     io: no\n");
  EXPECT_THAT(card, HasSubstr("[muster] digits failed: rank 1 failed first: exit code 4\n"));
  EXPECT_THAT(card, HasSubstr("\n  where     host box, cpu:1, pid 7\n  error     io: no\n  log "));
  EXPECT_THAT(card, Not(HasSubstr("noise")));
  EXPECT_EQ(card.find("where"), card.rfind("where")) << "one card, not one in the other";
}

TEST(TaskCard, IsOfWhatFailedAfterAJob) {
  const std::string card = card_with_log(
      "[muster] rank 1 failed first: exit code 4\n  where     host box, cpu:1, pid 7\n"
      "Traceback:\n  File eval.py\nValueError: no data\n");
  EXPECT_THAT(card, HasSubstr("[muster] digits failed: exit code 4\n"));
  EXPECT_THAT(card, HasSubstr("    | ValueError: no data\n"));
}

TEST(TaskCard, HasTheLinesAboveTheJobsCard) {
  const std::string card = card_with_log(
      "[1] the disk is full\n[muster] rank 1 failed first: exit code 4\n  where     host box\n"
      "  said      its last lines of standard error are above\n  report    /r\n");
  EXPECT_THAT(card, HasSubstr("  last lines\n    | [1] the disk is full\n  report    /r\n"));
  EXPECT_THAT(card, Not(HasSubstr("are above")));
}

}  // namespace
}  // namespace muster
