// `muster tasks` by the real program: runs that are interrupted or killed, and how they go on.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "muster/base/strings.h"
#include "muster/tasks/journal/journal.h"
#include "muster/tasks/journal/read.h"
#include "muster/tasks/journal/task_file.h"
#include "muster_program.h"
#include "tasks_program.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

// Sends an interrupt and waits until the process has taken it: two that are pending are one.
void interrupt(pid_t pid) {
  constexpr uint64_t kInterrupt = uint64_t{1} << (SIGINT - 1);
  constexpr std::string_view kPending = "ShdPnd:\t";
  ::kill(pid, SIGINT);
  const Deadline deadline(std::chrono::seconds(60));
  for (uint64_t pending = kInterrupt; (pending & kInterrupt) != 0;) {
    ASSERT_FALSE(deadline.passed());
    ::usleep(1'000);
    const std::string status = read_file(cat("/proc/", pid, "/status"));
    pending = std::stoull(status.substr(status.find(kPending) + kPending.size()), nullptr, 16);
  }
}

TEST(TasksResume, OneInterruptDrainsAndTwoEnd) {
  for (const int signals : {1, 2}) {
    const ScratchFolder folder;
    folder.write(
        "s.toml",
        task_table("first",
                   "echo yes >began; while [ ! -e go ]; do sleep 0.01; done; echo yes >ended") +
            task_table("second", "true", "after = [\"first\"]\n"));
    Program program({"tasks", "s.toml", "--run-dir", "run"}, folder);
    ASSERT_TRUE(appears(folder.path() + "/began"));
    interrupt(program.pid());
    if (signals == 2) {
      ::kill(program.pid(), SIGINT);
    } else {
      // What is told to the journal's readers comes before the end: nothing new has started by
      // then.
      folder.write("go", "");
    }
    const Ran ran = program.finish();
    EXPECT_EQ(ran.code, 128 + SIGINT) << ran.err;
    EXPECT_EQ(fs::exists(folder.path() + "/ended"), signals == 1);
    const std::vector<Task> tasks =
        task_file_of(read_file(folder.path() + "/run/tasks.json"), "t").tasks;
    const JournalState state = read_journal(folder.path() + "/run", tasks);
    EXPECT_EQ(state.results[0].state, signals == 1 ? TaskState::done : TaskState::waiting);
    EXPECT_EQ(state.results[1].state, TaskState::waiting);
    folder.write("go", "");
    const Ran again = muster({"tasks", "--resume", "run"}, folder);
    EXPECT_EQ(again.code, 0) << again.err;
  }
}

TEST(TasksResume, ExitCode75IsStartedAgainWithoutARetry) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("saves", "[ $MUSTER_ATTEMPT = 1 ] || exit 75") +
                   task_table("after it", "true", "after = [\"saves\"]\n"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run", "--json"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("(exit code 75), and is to be started again"));
  const json attempts = json::parse(ran.out)["tasks"][0]["attempts"];
  ASSERT_EQ(attempts.size(), 2U);
  EXPECT_EQ(attempts[0]["exit_code"], 75);
  EXPECT_EQ(attempts[0]["stopped"], true);
  EXPECT_EQ(attempts[1]["stopped"], false);
  EXPECT_GE(attempts[1]["began"].get<double>() - attempts[0]["ended"].get<double>(), 1);
}

// A time limit may be over before the task has said that it began.
TEST(TasksResume, ATaskThatStopsWhenItsRunIsEndedHasNotFailed) {
  for (const std::string limit : {"", "1s", "slurm-1s"}) {
    const bool by_limit = !limit.empty();
    const ScratchFolder folder;
    folder.write("s.toml",
                 task_table("saves",
                            "[ ! -e go ] || exit 0\n"
                            "trap 'exit 75' TERM; echo yes >began; while :; do sleep 0.01; done"));
    std::vector<std::string> words = {"tasks", "s.toml", "--run-dir", "run", "--json"};
    if (by_limit)
      words.insert(words.end(), {"--time-limit", limit});
    ProgramSettings settings;
    settings.environment = {{"SLURM_JOB_END_TIME", cat(std::time(nullptr) + 3)}};
    Program program(words, folder, settings);
    if (!by_limit) {
      ASSERT_TRUE(appears(folder.path() + "/began"));
      ::kill(program.pid(), SIGTERM);
    }
    const Ran ran = program.finish();
    EXPECT_EQ(ran.code, by_limit ? 124 : 128 + SIGTERM) << ran.err;
    EXPECT_EQ(json::parse(ran.out)["tasks"][0]["state"], "skipped");
    folder.write("go", "");
    EXPECT_EQ(muster({"tasks", "--resume", "run"}, folder).code, 0);
  }
}

TEST(TasksResume, ARunIsListedExplainedAndStopped) {
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.environment = {{"MUSTER_RUNTIME_DIR", folder.path()}};
  folder.write("s.toml",
               task_table("holds it", "echo yes >began; sleep 1000") +
                   task_table("waits", "true", "needs = { cpus = 1 }\n"));
  Program program({"tasks", "s.toml", "--cpus", "1", "--run-dir", "run"}, folder, settings);
  ASSERT_TRUE(appears(folder.path() + "/began"));
  EXPECT_THAT(muster({"ps"}, folder, settings).out, HasSubstr("tasks s.toml"));
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--explain", "waits"}, folder, settings).out,
              HasSubstr("0 of 1 CPU of"));
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--explain", "waits"}, folder, settings).out,
              HasSubstr("holds it has the others"));
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--explain", "holds it"}, folder, settings).out,
              HasSubstr("holds it runs since "));
  EXPECT_EQ(muster({"tasks", "--resume", "run", "--dry-run"}, folder, settings).out,
            "of 2 tasks 1 runs, none can start now; 1 waits; --explain NAME says why\n");
  EXPECT_THAT(muster({"tasks", "--resume", "run"}, folder, settings).err,
              HasSubstr("another run that goes on there"));
  EXPECT_EQ(muster({"stop", "--all"}, folder, settings).code, 0);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
}

// A task in its pause, of a run that goes on in another process; then what is told when that has
// ended.
TEST(TasksResume, APauseAndAnEndAreExplainedFromElsewhere) {
  const ScratchFolder folder;
  const auto spec = [&](const char* pause) {
    return task_table("bad", "exit 7", cat("retries = 1\nback_off = \"", pause, "\"\n")) +
           task_table("next", "true", "after = [\"bad\"]\n") +
           task_table("watch", "while [ ! -e go ]; do sleep 0.01; done", "after = []\n");
  };
  folder.write("s.toml", spec("1h"));
  const auto explain = [&](const std::string& name) {
    return muster({"tasks", "--resume", "run", "--explain", name}, folder).out;
  };
  Program program({"tasks", "s.toml", "--cpus", "4", "--run-dir", "run"}, folder);
  const Deadline deadline(std::chrono::seconds(60));
  std::string told;
  do {
    told = explain("bad");
  } while (told.find("failed") == std::string::npos && !deadline.passed());
  EXPECT_THAT(told,
              testing::MatchesRegex("bad failed 1 time and starts again in (1h|59m[0-9.]+s)\n"));
  EXPECT_EQ(explain("next"), "next waits for bad (waiting)\n");
  ::kill(program.pid(), SIGTERM);
  program.finish();
  fs::remove_all(folder.path() + "/run");
  folder.write("go", "");
  folder.write("s.toml", spec("1ms"));
  EXPECT_EQ(muster({"tasks", "s.toml", "--cpus", "4", "--run-dir", "run"}, folder).code, 1);
  EXPECT_THAT(explain("bad"),
              testing::MatchesRegex("no run goes on there\nbad is failed: exit code 7\n"
                                    "if it went on now, with --resume alone:\n"
                                    "bad would start first, on the CPU of .*\n"));
  EXPECT_EQ(explain("next"),
            "no run goes on there\nnext is skipped: after bad, which failed\n"
            "if it went on now, with --resume alone:\nnext waits for bad (running)\n");
  EXPECT_EQ(explain("watch"), "no run goes on there\nwatch is done\n");
  EXPECT_EQ(muster({"tasks", "s.toml", "--cpus", "4", "--explain", "next"}, folder).out,
            "no run yet; if one began now:\nnext waits for bad (running)\n");
}

TEST(TasksResume, OfARunThatIsDoneNothingStarts) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "true") + task_table("two", "true"));
  ASSERT_EQ(muster({"tasks", "s.toml", "--run-dir", "run"}, folder).code, 0);
  EXPECT_EQ(muster({"tasks", "--resume", "run", "--dry-run"}, folder).out,
            "every task has ended, 2 of 2 are done: nothing starts\n");
}

// Two tasks that run when the runner is killed, on two CPUs, and are done by a second run.
TEST(TasksResume, WhatDiedWithTheRunIsToldAsLost) {
  const ScratchFolder folder;
  folder.write(
      "s.toml",
      task_table("a{i}", "echo >began-{i}; test -e go || sleep 1000", "each = { i = [1, 2] }\n"));
  Program program({"tasks", "s.toml", "--cpus", "2", "--run-dir", "run"}, folder);
  ASSERT_TRUE(appears(folder.path() + "/began-1") && appears(folder.path() + "/began-2"));
  ::kill(program.pid(), SIGKILL);
  EXPECT_EQ(program.finish().code, 128 + SIGKILL);
  folder.write("go", "");
  const Ran ran = muster({"tasks", "--resume", "run", "--json", "--html", "t.html"}, folder);
  ASSERT_EQ(ran.code, 0) << ran.err;
  const json table = json::parse(ran.out);
  for (const json& task : table["tasks"]) {
    const json& attempts = task["attempts"];
    ASSERT_EQ(attempts.size(), 2U);
    EXPECT_EQ(attempts[0]["lost"], true);
    EXPECT_TRUE(attempts[0]["exit_code"].is_null());
    EXPECT_LE(attempts[0]["ended"], attempts[1]["began"]);
    EXPECT_EQ(attempts[1]["lost"], false);
    EXPECT_EQ(attempts[1]["exit_code"], 0);
  }
  const std::string page = read_file(folder.path() + "/t.html");
  EXPECT_THAT(page,
              AllOf(HasSubstr("lost with its run or host</title>"),
                    HasSubstr("CPU 1<"),
                    Not(HasSubstr("CPU 2<")),
                    Not(HasSubstr("\nrunning</title>"))));
}

// A file system that takes no more bytes is here a process that may write none into a file.
TEST(TasksResume, ARunWhoseJournalIsFullEndsAndCanBeResumed) {
  const ScratchFolder folder;
  const auto within = [&](int blocks) {
    return from_shell(cat("trap '' XFSZ; ulimit -f ",
                          blocks,
                          "; exec \"$0\" tasks --run-dir run ",
                          "--sweep a=1..200 --need-cpus 1 -- echo {a}"),
                      folder)
        .finish();
  };
  const Ran before = within(8);  // not even what is to be run
  EXPECT_EQ(before.code, 1);
  EXPECT_THAT(before.err, HasSubstr("run/tasks.json': File too large"));
  fs::remove_all(folder.path() + "/run");
  const Ran full = within(80);
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("journal"));
  const Ran resumed = muster({"tasks", "--resume", "run", "--json"}, folder);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const auto result = nlohmann::json::parse(resumed.out);
  const auto& tasks = result.at("tasks");
  const auto done = std::count_if(
      tasks.begin(), tasks.end(), [](const auto& task) { return task.at("state") == "done"; });
  EXPECT_EQ(done, 200);
}

// What a task does when it runs: says so, and that it came to its end, in files of its own.
constexpr const char* kCountingScript =
    "echo x >>began-$MUSTER_TASK; sleep 0.0$(( $MUSTER_ATTEMPT + 1 )); echo x >>ended-$MUSTER_TASK";

size_t lines_in(const std::string& path) {
  std::ifstream file(path);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

// Kills the runner at random moments, and goes on each time: nothing is lost, and what the journal
// has as done does not run again.
void kill_and_resume(unsigned seed, int num_tasks, int kills) {
  std::mt19937 random(seed);
  const ScratchFolder folder;
  folder.write(
      "s.toml",
      task_table("t{i}", kCountingScript, cat("each = { i = \"1..", num_tasks, "\" }\n")) +
          task_table("last", kCountingScript, cat("after = [\"t", num_tasks, "\", \"t1\"]\n")));
  const std::string run = folder.path() + "/run";
  const auto count = [&](const char* what, const std::string& name) {
    return lines_in(cat(folder.path(), "/", what, "-", name));
  };
  std::map<std::string, size_t> begun_when_done;
  std::vector<std::string> args = {"tasks", "s.toml", "-q", "--cpus", "4", "--run-dir", "run"};
  for (int kill = 0; kill <= kills; ++kill) {
    Program program(args, folder);
    if (kill < kills) {
      ::usleep(static_cast<useconds_t>(std::uniform_int_distribution<int>(1'000, 120'000)(random)));
      ::kill(program.pid(), SIGKILL);
    }
    const Ran ran = program.finish();
    ASSERT_TRUE(ran.code == 0 || (kill < kills && ran.code == 128 + SIGKILL))
        << ran.code << ran.err;
    if (!fs::exists(run + "/tasks.json")) {  // it had not begun yet: begin anew
      fs::remove_all(run);
      continue;
    }
    args = {"tasks", "-q", "--resume", "run"};
    const std::vector<Task> tasks = task_file_of(read_file(run + "/tasks.json"), "t").tasks;
    if (!fs::exists(run + "/journal"))
      continue;
    const JournalState state = read_journal(run, tasks);
    for (size_t i = 0; i < state.results.size(); ++i) {
      const std::string& name = tasks[i].name;
      const auto& attempts = state.results[i].attempts;
      for (size_t a = 0; a < attempts.size(); ++a)
        EXPECT_EQ(attempts[a].attempt, static_cast<int>(a));
      if (state.results[i].state != TaskState::done) {
        EXPECT_NE(ran.code, 0) << name << " was lost";
        continue;
      }
      EXPECT_GE(count("ended", name), 1U) << name << " was lost";
      const size_t begun = begun_when_done.emplace(name, count("began", name)).first->second;
      EXPECT_EQ(count("began", name), begun) << name << " was done and ran again";
    }
    if (ran.code == 0)
      return;
  }
  FAIL() << "the last run was to come to its end";
}

// MUSTER_KILL_ROUNDS: so many, and longer ones, as the test cli.tasks_killed_often does.
TEST(TasksResume, KilledAtAnyMomentARunGoesOn) {
  const auto rounds = parse_int(get_env("MUSTER_KILL_ROUNDS").value_or(""));
  for (unsigned round = 0; round < rounds.value_or(6); ++round) {
    SCOPED_TRACE(cat("round ", round));
    kill_and_resume(1'000 + round, rounds ? 40 : 12, rounds ? 12 : 5);
    if (HasFatalFailure())
      return;
  }
}

// What an attempt has saved the next one finds, and so does a resumed run: of a task, and of its
// ranks.
TEST(TasksResume, ATasksFolderLastsOverAttempts) {
  const ScratchFolder folder;
  const std::string count = "echo x >>$DIR/tries; test $(wc -l <$DIR/tries) -ge 3";
  folder.write("s.toml",
               task_table("one", "DIR=$MUSTER_TASK_DIR; " + count, "retries = 1\n") +
                   task_table("ranks",
                              "DIR=$MUSTER_RUN_DIR; [ $RANK = 1 ] && exit; " + count,
                              "retries = 1\nranks = 2\n"));
  EXPECT_EQ(muster({"tasks", "s.toml", "--run-dir", "run"}, folder).code, 1);
  const Ran ran = muster({"tasks", "--resume", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(read_file(folder.path() + "/run/logs/one/tries"), "x\nx\nx\n");
  EXPECT_EQ(read_file(folder.path() + "/run/logs/ranks/tries"), "x\nx\nx\n");
}

TEST(TasksResume, ByTheLinkToTheNewestRun) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("a", "test -e ready"));
  EXPECT_EQ(muster({"tasks", "s.toml"}, folder).code, 1);
  folder.write("ready", "");
  const Ran ran = muster({"tasks", "--resume", "runs/latest"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("/runs/latest")))
      << "the folder itself: the next run moves the link";
}

TEST(TasksResume, TheThirdInterruptKills) {
  const ScratchFolder folder;
  folder.write(
      "s.toml",
      task_table("stays", "trap 'touch asked' TERM; touch began; while :; do sleep 0.01; done"));
  Program program({"tasks", "s.toml", "--run-dir", "run", "--shutdown-timeout", "10m"}, folder);
  ASSERT_TRUE(appears(folder.path() + "/began"));
  interrupt(program.pid());
  ::kill(program.pid(), SIGINT);
  ASSERT_TRUE(appears(folder.path() + "/asked"));
  ::kill(program.pid(), SIGINT);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGINT) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("every task is killed"));
}

}  // namespace
}  // namespace muster
