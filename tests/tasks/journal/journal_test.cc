#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/base/wall_time.h"
#include "muster/tasks/journal/line.h"
#include "muster/tasks/journal/task_file.h"
#include "tests/tasks/journal/journals.h"

namespace muster::tasks_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Journal, TellsWhatBecameOfEachTask) {
  const ScratchFolder folder;
  const std::string bytes = write_some(folder);
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_EQ(state.head.run_id, "id");
  EXPECT_EQ(state.head.tasks_hash, "hash");
  EXPECT_EQ(state.seconds, 2.5);
  EXPECT_EQ(state.good_bytes, bytes.size());
  EXPECT_EQ(state.cut, "");
  EXPECT_EQ(state.results[0].state, TaskState::done);
  EXPECT_EQ(state.results[0].last_json, "{\"x\": 1}");
  EXPECT_EQ(state.results[0].attempts.at(0).ended, 1.5);
  EXPECT_EQ(state.results[1].state, TaskState::running);
  EXPECT_EQ(state.results[1].attempts.at(0).gpu_indices, std::vector<int>{3});
  EXPECT_EQ(state.taken[0], (TakenShare{100, 2}));
  EXPECT_EQ(state.results[2].state, TaskState::skipped);
}

// The task never began, so that its next start is the same attempt, and what the one before came to
// stands.
TEST(Journal, ARefusedStartIsNoAttempt) {
  const ScratchFolder folder;
  {
    Journal journal(folder.path());
    journal.begin_at(0);
    journal.head({"id", "hash", "mark"}, kTasks.size());
    for (const auto& [number, how] : {std::pair(0, AttemptEnd::refused),
                                      std::pair(0, AttemptEnd::again),
                                      std::pair(1, AttemptEnd::refused)}) {
      TaskAttempt attempt = attempt_at(number, number);
      journal.start("a", attempt, {});
      attempt.ended = number + 0.5;
      journal.end("a", attempt, how, "why", how == AttemptEnd::again ? "{}" : "");
    }
    journal.start("b", attempt_at(0, 0), {});
    TaskAttempt b = attempt_at(0, 0);
    journal.end("b", b, AttemptEnd::refused, "why", "");
    journal.sync();
  }
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_EQ(state.results[0].state, TaskState::waiting);
  ASSERT_EQ(state.results[0].attempts.size(), 1U);
  EXPECT_EQ(state.results[0].attempts[0].ended, 0.5);
  EXPECT_EQ(state.results[0].last_json, "{}");
  EXPECT_TRUE(state.results[1].attempts.empty());
  EXPECT_EQ(state.results[1].state, TaskState::waiting);
}

TEST(Journal, AStoppedAttemptIsNoFailure) {
  const ScratchFolder folder;
  {
    Journal journal(folder.path());
    journal.begin_at(0);
    journal.head({"id", "hash", "mark"}, kTasks.size());
    for (const int number : {0, 1}) {
      TaskAttempt attempt = attempt_at(number, number);
      journal.start("a", attempt, {});
      attempt.ended = number + 0.5;
      attempt.exit_code = 75;
      journal.end("a", attempt, AttemptEnd::stopped, "it stopped", "");
    }
    journal.sync();
  }
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_EQ(state.results[0].state, TaskState::waiting);
  EXPECT_TRUE(has_stopped(state.results[0].attempts.at(1)));
  EXPECT_EQ(state.failures[0].count, 0);
  EXPECT_EQ(state.stops[0].count, 2);
  EXPECT_EQ(state.stops[0].last, 1.5);
}

TEST(Journal, AKilledAttemptHasASignalAndALostOneNeither) {
  const ScratchFolder folder;
  {
    Journal journal(folder.path());
    journal.begin_at(0);
    journal.head({"id", "hash", "mark"}, kTasks.size());
    TaskAttempt killed = attempt_at(1, 0);
    journal.start("a", killed, {});
    killed.ended = 2;
    killed.signal = 9;
    journal.end("a", killed, AttemptEnd::failed, "killed by SIGKILL", "");
    TaskAttempt lost = attempt_at(1, 0);
    journal.start("b", lost, {});
    lost.ended = 3;
    lost.lost = true;
    journal.end("b", lost, AttemptEnd::interrupted, "host c was lost", "");
    journal.sync();
  }
  const std::string text = read_file(journal_path(folder.path()));
  EXPECT_THAT(text, HasSubstr(R"("how":"failed","signal":9,)"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\"code\"")));
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_EQ(state.results[0].attempts[0].signal, 9);
  EXPECT_TRUE(state.results[1].attempts[0].lost);
  EXPECT_EQ(state.results[1].attempts[0].ended, 3);
}

// What a host that was lost and is back has from then on is ended by the next run too.
TEST(Journal, TellsEveryMarkOfEveryRun) {
  const ScratchFolder folder;
  write_some(folder);
  {
    Journal journal(folder.path());
    go_on(journal, folder);
    journal.mark("mark.1", 3);
    journal.resume("other", 4);
    journal.sync();
  }
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_THAT(state.marks, testing::ElementsAre("mark", "mark.1", "other"));
  EXPECT_EQ(state.head.mark, "mark");
}

// The run was killed while b ran: its bar ends with what is known of that run, and is no later
// run's.
TEST(Journal, AnAttemptThatDiedWithItsRunIsLost) {
  const ScratchFolder folder;
  write_some(folder);
  {
    Journal journal(folder.path());
    go_on(journal, folder);
    journal.resume("other", 2.5);
    journal.start("b", attempt_at(3, 1), {});
    journal.sync();
  }
  const JournalState state = read_journal(folder.path(), kTasks);
  const TaskResult& b = state.results[1];
  ASSERT_EQ(b.attempts.size(), 2U);
  EXPECT_TRUE(b.attempts[0].lost);
  EXPECT_EQ(b.attempts[0].ended, 2.5);
  EXPECT_FALSE(b.attempts[1].lost || b.attempts[1].ended);
  EXPECT_EQ(b.state, TaskState::running);
  EXPECT_FALSE(state.results[0].attempts[0].lost);
}

TEST(Journal, TellsWhatFailedInTheLastRunAndItsPresent) {
  const ScratchFolder folder;
  const auto write = [&](double at, bool resumes) {
    Journal journal(folder.path());
    if (resumes) {
      go_on(journal, folder);
    } else {
      journal.begin_at(0);
    }
    if (resumes) {
      journal.resume("other", at);
    } else {
      journal.head({"id", "hash", "mark"}, kTasks.size());
    }
    TaskAttempt a = attempt_at(at, 0);
    journal.start("a", a, {});
    a.ended = at + 2;
    journal.end("a", a, AttemptEnd::again, "exit code 1", "");
    journal.sync();
  };
  for (const bool resumes : {false, true}) {
    const double at = resumes ? 100 : 0;
    write(at, resumes);
    const JournalState state = read_journal(folder.path(), kTasks);
    EXPECT_EQ(state.failures[0].count, 1);
    EXPECT_EQ(state.failures[0].last, at + 2);
    EXPECT_EQ(state.failures[1].count, 0);
    EXPECT_NEAR(present_of(state, state.began_wall + 30), at + 30, 1e-6);
    EXPECT_EQ(present_of(state, state.began_wall - 1'000), at + 2) << "the clock was set back";
    EXPECT_NEAR(present_of(state, seconds_since_1970() + 3), at + 3, 2.9);
  }
}

// Wherever the file ends, as after a kill or a power cut, all whole records before that are read,
// and a next run goes on behind them.
TEST(Journal, ALastLineThatIsNotWholeIsCutOff) {
  const ScratchFolder folder;
  const std::string bytes = write_some(folder);
  for (size_t size = bytes.size() - 1; size > 0; size -= std::min<size_t>(size, 7)) {
    std::ofstream(journal_path(folder.path()), std::ios::trunc) << bytes.substr(0, size);
    const JournalState state = read_journal(folder.path(), kTasks);
    const bool whole = bytes[size - 1] == '\n';
    EXPECT_EQ(state.cut.empty(), whole) << size;
    EXPECT_EQ(state.good_bytes, bytes.rfind('\n', size - 1) + 1) << size;
  }
  std::ofstream(journal_path(folder.path()), std::ios::trunc) << bytes.substr(0, bytes.size() - 5);
  const JournalState cut = read_journal(folder.path(), kTasks);
  {
    Journal journal(folder.path());
    journal.begin_at(cut.good_bytes, cut.last_sum);
    journal.skip("c", "again", 3);
    journal.sync();
  }
  EXPECT_EQ(read_journal(folder.path(), kTasks).results[2].reason, "again");
}

TEST(Journal, DamageInTheMiddleIsAnErrorThatNamesTheLine) {
  const ScratchFolder folder;
  const std::string bytes = write_some(folder);
  size_t at = 0;
  for (int line = 1; line <= 4; ++line) {
    std::string damaged = bytes;
    damaged[bytes.find('\n', at) - 3] ^= 1;
    std::ofstream(journal_path(folder.path()), std::ios::trunc) << damaged;
    try {
      read_journal(folder.path(), kTasks);
      ADD_FAILURE() << "no error for line " << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      EXPECT_THAT(error.what(), HasSubstr(cat("line ", line, ")")));
    }
    at = bytes.find('\n', at) + 1;
  }
}

// The sums of such lines are right: another program has written them.
TEST(Journal, ARecordThatMeansNothingIsAnErrorInWords) {
  const std::string head =
      R"({"e":"run","schema":"muster.journal/2","run":"r","tasks_hash":"","num_tasks":3,"mark":"m"})";
  for (const auto& [record, words] : std::vector<std::pair<std::string, std::string>>{
           {R"({"e":"skip","task":"z","reason":""})", "'z', which is no task of this run"},
           {R"({"e":"end","task":"a","attempt":0,"at":1,"how":"done"})", "another attempt"},
           {R"({"e":"skip","task":"a"})", "key 'reason' not found"},
           {R"({"e":"skip","task":"a","reason":"","after":7})", "must be string"}}) {
    try {
      journal_from(journal_line(head) + journal_line(record), "x/journal", kTasks);
      ADD_FAILURE() << record;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(words), HasSubstr("x/journal, line 2")));
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("json.exception")));
    }
  }
}

TEST(Journal, OtherTasksAreRefused) {
  const ScratchFolder folder;
  write_some(folder);
  EXPECT_THROW(read_journal(folder.path(), {kTasks[0]}), Error);
  EXPECT_THROW(read_journal(folder.path(), {kTasks[0], kTasks[1], task_of("d", {{.cpus = 1}})}),
               Error);
}

TEST(Journal, OneRunAtATimeInAFolder) {
  const ScratchFolder folder;
  EXPECT_FALSE(is_in_use(folder.path()));
  {
    const Journal journal(folder.path());
    EXPECT_TRUE(is_in_use(folder.path()));
    EXPECT_THROW(Journal(folder.path()), Error);
  }
  EXPECT_FALSE(is_in_use(folder.path()));
  EXPECT_NO_THROW(Journal(folder.path()));
}

// As of a runner that was killed between the fork and the exec of a task.
TEST(Journal, AProcessThatKeepsTheLockForAMomentIsWaitedFor) {
  const ScratchFolder folder;
  auto killed = std::make_unique<Journal>(folder.path());
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;)
      ::pause();
  }
  killed.reset();
  ASSERT_TRUE(is_in_use(folder.path()));
  std::thread end([&] {
    ::usleep(20'000);  // the result is the same when it is shorter or longer
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  });
  EXPECT_NO_THROW(Journal(folder.path()));
  end.join();
}

// A limit on the file's size stands for a full disk.
TEST(Journal, AFullDiskIsAnErrorAndLeavesWholeRecords) {
  const ScratchFolder folder;
  rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  struct sigaction ignored = {};
  struct sigaction was = {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignored, &was);
  {
    Journal journal(folder.path());
    journal.begin_at(0);
    journal.head({"id", "hash", "mark"}, kTasks.size());
    journal.sync();
    const rlimit small = {.rlim_cur = std::filesystem::file_size(journal_path(folder.path())) + 100,
                          .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    journal.start("a", attempt_at(1, 0), {});
    EXPECT_THROW(journal.write(), Error);
    ::setrlimit(RLIMIT_FSIZE, &before);
    const JournalState full = read_journal(folder.path(), kTasks);
    EXPECT_EQ(full.cut, "");
    EXPECT_EQ(full.results[0].state, TaskState::waiting);
    EXPECT_NO_THROW(journal.write()) << "there is room again";
  }
  ::sigaction(SIGXFSZ, &was, nullptr);
  const JournalState state = read_journal(folder.path(), kTasks);
  EXPECT_EQ(state.cut, "");
  EXPECT_EQ(state.results[0].state, TaskState::running) << "and the records go on where they ended";
}

TEST(TaskFile, GivesTheSameTasksBack) {
  Task all{
      .name = "all \"of\" it",
      .argv = {"sh", "-c", "echo '\n'"},
      .environment = {{"A", "b c"}},
      .directory = "/d",
      .needs = {{.gpus = 0.5, .memory_bytes = uint64_t{20} << 30, .model = "A100"}, {.cpus = 4}},
      .on = "0,2",
      .ranks = 4,
      .after = {"x"},
      .priority = -3,
      .retries = 2,
      .back_off = std::chrono::milliseconds(1500),
      .time_limit = std::chrono::milliseconds(90'000),
      .parameters = {{"lr", "0.1"}},
      .at = {3, 1}};
  const TaskFile file{.settings = {{"gpus", "0-3"}}, .tasks = {all, task_of("x", {{.gpus = 1}})}};
  EXPECT_EQ(task_file_of(to_text(file), "test"), file);
  EXPECT_THROW(task_file_of(to_text(file) + "{\"name\": 3}\n", "test"), Error);
}

// Its list of members copies what it has when it grows, and a copy would overflow the stack.
TEST(TaskFile, WhatNestsTooDeepIsAnError) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const std::string text = to_text({.settings = {}, .tasks = {task_of("x", {{.gpus = 1}})}});
  const size_t place = text.find("\"name\"");
  EXPECT_THROW(
      task_file_of(text.substr(0, place) + "\"deep\":" + deep + "," + text.substr(place), "test"),
      Error);
}

// What is written into a file that nobody can open any more is lost at the run's end.
TEST(Journal, AFileThatSomebodyHasRemovedIsAnError) {
  const ScratchFolder folder;
  Journal journal(folder.path());
  journal.begin_at(0);
  journal.head({"id", "hash", "mark"}, kTasks.size());
  journal.sync();
  std::filesystem::remove(journal_path(folder.path()));
  journal.mark("mark", 1);
  EXPECT_THROW(journal.sync(), Error);
}

}  // namespace
}  // namespace muster::tasks_test
