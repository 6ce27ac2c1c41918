#include "muster/tasks/report/live_table.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <memory>

#include "muster/base/strings.h"
#include "muster/tasks/hosts/task_process.h"
#include "muster/tasks/report/card.h"
#include "tests/tasks/schedule/machines.h"

namespace muster::tasks_test {
namespace {

using testing::HasSubstr;

TEST(LiveTable, SaysWhatRunsWhatWaitsAndHowLong) {
  const std::vector<Task> tasks = {
      task_of("a", {{.gpus = 1}}), task_of("b", {{.gpus = 0.5}}), task_of("c", {{.gpus = 1}})};
  TaskSchedule schedule(tasks, DevicePool({.source = "test", .hosts = {host_with(1)}}));
  LiveTable table(tasks, {.fd = -1, .table = true, .rows = 24, .columns = 120});
  EXPECT_EQ(schedule.start(0).at(0).task, 0U);
  TaskResult done{.state = TaskState::done,
                  .attempts = {attempt_of(schedule.pool(), schedule.allocation(0), 0)}};
  table.started(0, done.attempts[0]);
  EXPECT_THAT(table.lines(schedule, 3).at(0),
              HasSubstr("1 running · 2 waiting · 0 done   GPUs 1 of 1   CPUs 0 of 8   3.0s"));
  EXPECT_THAT(table.lines(schedule, 3).at(1), HasSubstr("a  GPU 0  3.0s"));
  done.attempts[0].ended = 10;
  schedule.done(0);
  table.ended(0, done);
  EXPECT_THAT(table.lines(schedule, 10).at(0), HasSubstr("about 20.0s left"));
}

// Three seconds each, two at a time: what is left falls as the clock goes on, and no task is
// expected to be over before it is.
TEST(LiveTable, TheTimeLeftCountsDown) {
  std::vector<Task> tasks(6);
  for (size_t i = 0; i < tasks.size(); ++i)
    tasks[i] = task_of(cat("t", i), {{.cpus = 1}});
  TaskSchedule schedule(tasks, pool_of(0, 2));
  LiveTable table(tasks, {.fd = -1, .table = true, .rows = 24, .columns = 120});
  const auto left_at = [&](double now) {
    const std::string head = table.lines(schedule, now).at(0);
    const size_t at = head.find("about ");
    return at == std::string::npos ? std::string() : head.substr(at + 6);
  };
  const auto start = [&](double now) {
    for (const TaskStart& one : schedule.start(now))
      table.started(one.task, {.began = now});
  };
  const auto end = [&](size_t task, double began, double now) {
    schedule.done(task);
    table.ended(task, {.state = TaskState::done, .attempts = {{.began = began, .ended = now}}});
  };
  start(0);
  EXPECT_EQ(left_at(2), "") << "nothing is known yet";
  schedule.release(0);
  schedule.release(1);
  start(3);
  end(0, 0, 3);  // is told when it is on the disk, and others have started then
  EXPECT_EQ(left_at(3), "6.0s left");
  end(1, 0, 3);
  EXPECT_EQ(left_at(3), "6.0s left");
  EXPECT_EQ(left_at(5), "4.0s left");
  EXPECT_EQ(left_at(8), "3.0s left") << "those two are late";
  end(2, 3, 6);
  start(6);
  end(3, 3, 6);
  start(8);
  EXPECT_EQ(left_at(8), "3.0s left") << "the last of them takes that long";
  EXPECT_EQ(left_at(20), "") << "no longer known";
}

// What is drawn where there is no terminal.
class LinesOfARun {
 public:
  LinesOfARun() : file_(std::tmpfile(), ::fclose) {}
  int fd() const { return ::fileno(file_.get()); }
  std::string text() const {
    EXPECT_EQ(std::fseek(file_.get(), 0, SEEK_SET), 0);
    std::string text(65'536, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
  }

 private:
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
};

TEST(LiveTable, CountsWhatHasEndedForGoodInEarlierRunsToo) {
  const std::vector<Task> tasks = {task_of("a", {{.cpus = 1}}),
                                   task_of("b", {{.cpus = 1}}),
                                   task_of("c", {{.cpus = 1}}),
                                   task_of("d", {{.cpus = 1}})};
  const LinesOfARun lines;
  {
    LiveTable table(tasks,
                    {.fd = lines.fd()},
                    {{.state = TaskState::done, .attempts = {{.began = 0, .ended = 1}}},
                     {.state = TaskState::failed, .attempts = {{.began = 0, .ended = 1}}}});
    table.ended(1, {.state = TaskState::skipped, .attempts = {{.began = 1, .ended = 2}}});
    table.ended(2, {.state = TaskState::done, .attempts = {{.began = 1, .ended = 3}}});
  }
  EXPECT_EQ(lines.text(),
            "[muster] b interrupted after 1.0s\n"
            "[muster] c done in 2.0s (2 of 4)\n");
}

// A launcher's start is certain only once it has ended otherwise.
TEST(LiveTable, AStartWithoutRoomIsToldOnceForEachReason) {
  std::vector<Task> tasks = {task_of("a", {{.cpus = 1}})};
  tasks[0].ranks = 2;
  const LinesOfARun lines;
  {
    LiveTable table(tasks, {.fd = lines.fd()});
    const TaskAttempt attempt{.began = 0, .ended = 1};
    const auto refuse = [&](const char* reason, bool starved) {
      table.started(0, attempt);
      table.refused(0, {.state = TaskState::waiting, .reason = reason}, starved);
    };
    refuse("no processes", true);
    refuse("no processes", true);
    refuse("another job was faster", false);
    table.started(0, attempt);
    table.ended(0, {.state = TaskState::waiting, .attempts = {attempt}, .reason = "exit code 1"});
    refuse("no processes", true);
  }
  const std::string started = "[muster] a started on " + describe_devices(TaskAttempt{}) + "\n";
  EXPECT_EQ(lines.text(),
            started +
                "[muster] a could not begin (no processes), and starts again\n"
                "[muster] a could not begin (another job was faster), and starts again\n"
                "[muster] a failed (exit code 1); muster tries it again\n" +
                started + "[muster] a could not begin (no processes), and starts again\n");
}

TEST(LiveTable, ManyThatAreSkippedForOneReasonAreALine) {
  std::vector<Task> tasks(50);
  std::vector<size_t> all;
  for (size_t i = 0; i < tasks.size(); ++i) {
    tasks[i] = task_of(cat("t", i), {{.cpus = 1}});
    all.push_back(i);
  }
  const LinesOfARun lines;
  {
    LiveTable table(tasks, {.fd = lines.fd(), .quiet = true});
    table.skipped({0, 1}, "after x, which failed");
    all.erase(all.begin(), all.begin() + 2);
    table.skipped(all, "after y, which failed");
  }
  EXPECT_EQ(lines.text(),
            "[muster] t0 skipped: after x, which failed\n"
            "[muster] t1 skipped: after x, which failed\n"
            "[muster] 48 tasks skipped: after y, which failed\n");
}

}  // namespace
}  // namespace muster::tasks_test
