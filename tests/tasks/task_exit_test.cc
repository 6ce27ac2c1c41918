#include "muster/tasks/task_exit.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TaskAttempt ended_with(const Task& task, const ChildExit& exit, TaskEnd::Kind kind = TaskEnd::Kind::ended) {
  TaskEnd end{.kind = kind};
  end.exit.exit = exit;
  TaskAttempt attempt;
  take_exit(task, end, attempt);
  return attempt;
}

TEST(TakeExit, ASignalIsASignalWhoeverSaysIt) {
  EXPECT_EQ(ended_with({}, {.exit_code = 3}), (TaskAttempt{.exit_code = 3}));
  EXPECT_EQ(ended_with({}, {.exit_code = 137}), (TaskAttempt{.exit_code = 137})) << "a program's own code";
  EXPECT_EQ(ended_with({}, {.signal = 9}), (TaskAttempt{.signal = 9}));
  EXPECT_EQ(ended_with({.ranks = 2}, {.exit_code = 137}), (TaskAttempt{.signal = 9})) << "of a rank";
  EXPECT_EQ(ended_with({.ranks = 2}, {.exit_code = 255}), (TaskAttempt{.exit_code = 255})) << "no signal's";
  EXPECT_EQ(ended_with({}, {.exit_code = 1}, TaskEnd::Kind::lost), (TaskAttempt{.lost = true}));
}

}  // namespace
}  // namespace muster
