#include "muster/tasks/task_exit.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TaskAttempt ended_with(const Task& task,
                       const ChildExit& exit,
                       TaskEnd::Kind kind = TaskEnd::Kind::ended) {
  TaskEnd end{.kind = kind};
  end.exit.exit = exit;
  TaskAttempt attempt;
  take_exit(task, end, attempt);
  return attempt;
}

TEST(TakeExit, ASignalIsASignalWhoeverSaysIt) {
  EXPECT_EQ(ended_with({}, {.exit_code = 3}), (TaskAttempt{.exit_code = 3}));
  EXPECT_EQ(ended_with({}, {.exit_code = 137}), (TaskAttempt{.exit_code = 137}))
      << "a program's own code";
  EXPECT_EQ(ended_with({}, {.signal = 9}), (TaskAttempt{.signal = 9}));
  EXPECT_EQ(ended_with({.ranks = 2}, {.exit_code = 137}), (TaskAttempt{.signal = 9}))
      << "of a rank";
  EXPECT_EQ(ended_with({.ranks = 2}, {.exit_code = 255}), (TaskAttempt{.exit_code = 255}))
      << "no signal's";
  EXPECT_EQ(ended_with({}, {.exit_code = 1}, TaskEnd::Kind::lost), (TaskAttempt{.lost = true}));
}

AttemptEnd judged(const ChildExit& exit, const RunStanding& run, TaskResult& result) {
  TaskEnd end;
  end.exit.exit = exit;
  result = {.attempts = {{.began = 1, .ended = 2}}};
  take_exit({}, end, result.attempts.back());
  return judge_end({}, end, run, result);
}

TEST(JudgeEnd, ExitCode75IsNoFailureAndCostsNoRetry) {
  TaskResult result;
  EXPECT_EQ(judged({.exit_code = 75}, {}, result), AttemptEnd::stopped);
  EXPECT_EQ(result.state, TaskState::waiting);
  EXPECT_EQ(judged({.exit_code = 75}, {.draining = true}, result), AttemptEnd::stopped);
  EXPECT_EQ(result.state, TaskState::skipped) << "--resume starts it";
  EXPECT_EQ(
      judged({.exit_code = 75}, {.interrupted = true, .ending = true, .why_ended = "why"}, result),
      AttemptEnd::interrupted);
  EXPECT_EQ(result.state, TaskState::skipped);
  EXPECT_EQ(result.reason, "why");
  EXPECT_EQ(judged({.exit_code = 76}, {}, result), AttemptEnd::failed);
  EXPECT_EQ(result.state, TaskState::failed);
}

TEST(JudgeEnd, OneThatCouldNotBeginStartsAgainUnlessNothingDoes) {
  for (const bool draining : {false, true}) {
    const TaskEnd end{.kind = TaskEnd::Kind::starved, .why_not = "why"};
    TaskResult result{.attempts = {{}}};
    EXPECT_EQ(judge_end({}, end, {.draining = draining}, result), AttemptEnd::refused);
    EXPECT_EQ(result.state, draining ? TaskState::skipped : TaskState::waiting);
    EXPECT_EQ(result.reason, "why");
  }
}

TEST(JudgeEnd, OneThatItsTimeLimitHasStoppedHasFailed) {
  const Task task{.time_limit = std::chrono::seconds(1)};
  TaskEnd end;
  end.exit.exit = {.exit_code = 75};
  TaskResult result{.attempts = {{.ended = 2, .exit_code = 75, .timed_out = true}}};
  EXPECT_EQ(judge_end(task, end, {}, result), AttemptEnd::failed);
}

}  // namespace
}  // namespace muster
