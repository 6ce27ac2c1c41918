// `muster tasks` by the real program: what tasks get and leave, and what is told of it. How runs go
// on is tasks_resume_test.cc's part.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster_program.h"
#include "tasks_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Tasks, RunInTheirOrderAndEndInATable) {
  const ScratchFolder folder;
  folder.write(
      "s.toml",
      task_table(
          "lr-{lr}",
          R"(echo "$MUSTER_TASK $MUSTER_ATTEMPT $MUSTER_DEVICE"; test -e prepared && echo '{{"accuracy": {lr}}}')",
          "each = { lr = [0.5, 0.25] }\nafter = [\"prepare\"]\n") +
          task_table("prepare", "echo yes >prepared"));
  const Ran ran =
      muster({"tasks", "s.toml", "--run-dir", "run", "--csv", "r.csv", "--html", "t.html"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(in_order(ran.err, {"prepare started on", "prepare done", "lr-0.5 started", "3 of 3"}),
              testing::IsEmpty());
  EXPECT_THAT(ran.out, AllOf(HasSubstr("accuracy"), HasSubstr("lr-0.25")));
  EXPECT_THAT(log_of_task(folder, "lr-0.5"), HasSubstr("lr-0.5 0 cpu:0\n"));
  EXPECT_THAT(read_file(folder.path() + "/r.csv"), HasSubstr("0.25"));
  EXPECT_THAT(read_file(folder.path() + "/t.html"), HasSubstr("lr-0.5"));
  const Ran again = muster({"tasks", "s.toml", "--resume", "run", "--json"}, folder);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, Not(HasSubstr("started")));
  const json results = json::parse(again.out);
  for (const json& task : results["tasks"])
    EXPECT_EQ(task["attempts"].size(), 1U);
  EXPECT_THAT(muster({"tasks", "s.toml", "--run-dir", "run"}, folder).err,
              HasSubstr("resume it with --resume"));
  std::filesystem::remove(folder.path() + "/run/journal");
  EXPECT_THAT(muster({"tasks", "--resume", "run"}, folder).err,
              HasSubstr("expected the records of the run"));
  folder.write("other.toml", task_table("prepare", "true"));
  EXPECT_THAT(muster({"tasks", "other.toml", "--resume", "run"}, folder).err,
              HasSubstr("got others"));
}

TEST(Tasks, AFailureIsToldTriedAgainAndSkipsWhatDependsOnIt) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("flaky",
                          "echo try $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 1 ]",
                          "retries = 1\nback_off = \"10ms\"\n") +
                   task_table("bad", "echo the disk is on fire; exit 3") +
                   task_table("next", "true", "after = [\"bad\"]\n") + task_table("none", "true"));
  std::string spec = read_file(folder.path() + "/s.toml");
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("bad failed: exit code 3"),
                    HasSubstr("| the disk is on fire"),
                    HasSubstr("next skipped: after bad, which failed")));
  EXPECT_EQ(log_of_task(folder, "flaky", 1), "try 1\n");
  const Ran fast =
      muster({"tasks", "s.toml", "--run-dir", "fast", "--fail-fast", "--jobs", "1"}, folder);
  EXPECT_EQ(fast.code, 1);
  EXPECT_THAT(fast.err, HasSubstr("bad failed (--fail-fast)"));
  EXPECT_THAT(muster({"tasks", "s.toml", "--explain", "next"}, folder).out,
              HasSubstr("next waits for bad ("));
  EXPECT_THAT(muster({"tasks", "s.toml", "--dry-run", "--jobs", "1"}, folder).out,
              HasSubstr("of 4 tasks this one starts first; 3 wait"));
}

TEST(Tasks, AProgramThatIsNotThereIsAFailureWithItsName) {
  const ScratchFolder folder;
  const Ran ran = muster(
      {"tasks", "--sweep", "x=1..2", "--run-dir", "run", "--need-cpus", "1", "--", "./absent-{x}"},
      folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("cannot start './absent-2'"));
}

// The processes that are in this folder.
std::vector<std::string> processes_in(const std::string& folder) {
  const auto here = std::filesystem::canonical(folder);
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path() / "cwd", gone) == here && !gone)
      found.push_back(entry.path().filename());
  }
  return found;
}

// The limit may be over at any moment of what the task does.
TEST(Tasks, ATimeLimitEndsATaskWithAllThatItStarted) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("slow", "setsid sleep 1000 & sleep 1000", "time_limit = \"300ms\"\n"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("its time limit of 300ms is over"));
  EXPECT_THAT(processes_in(folder.path()), testing::IsEmpty());
  const Ran whole =
      muster({"tasks", "s.toml", "--run-dir", "whole", "--time-limit", "50ms"}, folder);
  EXPECT_EQ(whole.code, 124);
}

TEST(Tasks, WhatATaskLeavesBehindIsNamed) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("web", "setsid sleep 1000 & until [ -e /proc/$! ]; do :; done"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(
      ran.err,
      testing::ContainsRegex("web left processes behind, which were ended: process [0-9]+ "));
  EXPECT_THAT(processes_in(folder.path()), testing::IsEmpty());
}

TEST(Tasks, WriteToNoLogThroughALink) {
  const ScratchFolder folder;
  const std::string precious = folder.write("precious", "text");
  folder.write("s.toml",
               task_table("first", "mkdir run/logs/a; ln -s $PWD/precious run/logs/a/0.log") +
                   task_table("a", "echo yes", "after = [\"first\"]\n"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("is no link, got '"));
  EXPECT_EQ(read_file(precious), "text");
}

// As Python prints it, and as muster's own programs do.
TEST(Tasks, AResultThatIsNoNumberIsAFailureUnlessItIsAllowed) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("python", "echo '{{\"loss\": NaN, \"epochs\": 3}}'; exit 0") +
                   task_table("cpp", "echo '{{\"loss\":\"NaN\"}}'; exit 0") +
                   task_table("fine", "echo '{{\"loss\": 0.5, \"best\": null}}'; exit 0"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run", "--html", "r.html"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(
      ran.err,
      HasSubstr("python failed: its result's loss is NaN; --allow-nan takes that for done\n"));
  EXPECT_THAT(
      ran.out,
      AllOf(HasSubstr("python  failed"), HasSubstr("cpp     failed"), HasSubstr("fine    done")));
  EXPECT_THAT(read_file(folder.path() + "/r.html"), HasSubstr("loss is NaN"));
  const Ran allowed = muster({"tasks", "--resume", "run", "--allow-nan", "--csv", "r.csv"}, folder);
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_THAT(read_file(folder.path() + "/r.csv"), HasSubstr(",NaN,"));
}

TEST(Tasks, TopOfTheirFolderNamesWhatShowsIt) {
  const ScratchFolder folder;
  ASSERT_EQ(
      muster({"tasks", "--run-dir", "run", "--sweep", "a=1", "--", "echo", "{a}"}, folder).code, 0);
  const Ran top = muster({"top", "run"}, folder);
  EXPECT_EQ(top.code, 2);
  EXPECT_THAT(top.err,
              HasSubstr("'run' of a run of tasks; `muster report 'run'` makes a page of it"));
}

// Its number is one and the same wherever it is told.
TEST(Tasks, TheSecondStartIsRestartOne) {
  const ScratchFolder folder;
  folder.write(
      "s.toml",
      task_table(
          "a", "echo variable $MUSTER_ATTEMPT; exit 3", "retries = 1\nback_off = \"1ms\"\n"));
  const Ran ran =
      muster({"tasks", "s.toml", "--run-dir", "run", "--csv", "r.csv", "--html", "r.html"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(log_of_task(folder, "a", 0), "variable 0\n");
  EXPECT_EQ(log_of_task(folder, "a", 1), "variable 1\n");
  EXPECT_THAT(ran.err, HasSubstr("a started on the CPU, restart 1\n"));
  EXPECT_THAT(ran.err, testing::ContainsRegex("when .* after its start, restart 1\n"));
  EXPECT_THAT(ran.out, HasSubstr("task  state   restarts  devices"));
  EXPECT_THAT(ran.out, HasSubstr("a     failed         1  CPU"));
  const std::string csv = read_file(folder.path() + "/r.csv");
  EXPECT_THAT(csv, HasSubstr("name,state,reason,restarts,"));
  EXPECT_THAT(csv, HasSubstr("a,failed,exit code 3,1,"));
  EXPECT_THAT(read_file(folder.path() + "/r.html"), HasSubstr("restart 1\n"));
}

TEST(Tasks, RanksAreAJobOfTheLauncher) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("ddp",
                          "echo rank $RANK of $WORLD_SIZE in $MUSTER_TASK",
                          "ranks = 2\nneeds = { cpus = 2 }\n"));
  const Ran ran = muster({"tasks", "s.toml", "--cpus", "2", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(log_of_task(folder, "ddp"),
              AllOf(HasSubstr("rank 0 of 2 in ddp"), HasSubstr("rank 1 of 2 in ddp")));
}

// A sweep over a machine of two GPUs that is not there: two halves share one of them.
TEST(Tasks, ASweepOverASimulatedMachine) {
  const ScratchFolder folder;
  folder.write("box.toml",
               "[[host]]\nname = \"box\"\ngpus = \"2xA100-40GB\"\nnvlink = \"all\"\ncores = 8\n");
  const std::string tell =
      "echo \"$MUSTER_SIMULATED [$CUDA_VISIBLE_DEVICES] $MUSTER_DEVICE\"; echo '{\"score\": "
      "0.{x}}'";
  const auto sweep = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"tasks", "--inventory", "box.toml", "--sweep", "x=1..3"});
    flags.insert(
        flags.end(),
        {"--", "sh", "-c", tell.substr(0, tell.find("echo '")) + "echo '{{\"score\": 0.{x}}}'"});
    return muster(flags, folder);
  };
  const Ran first = sweep({"--need-gpus", "0.5", "--dry-run"});
  EXPECT_THAT(first.out, AllOf(HasSubstr("0.5 of GPU 0"), HasSubstr("0.5 of GPU 1"))) << first.err;
  const Ran ran = sweep({"--need-gpus", "0.5", "--json", "--run-dir", "run"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(log_of_task(folder, "x=1"), HasSubstr("1 [] GPU-"));
  EXPECT_EQ(json::parse(ran.out)["tasks"][2]["result"]["score"], 0.3);
  EXPECT_EQ(sweep({"--need-gpus", "3"}).code, 2) << "the machine has two";
  EXPECT_THAT(
      sweep({"--need-gpus", "0", "--need-memory", "1GiB"}).err,
      testing::HasSubstr("--need-gpus: expected a GPU at least beside --need-memory, got 0"));
}

// Its CPUs are no more there than its GPUs are.
TEST(Tasks, ASimulatedMachinesCpusBindNobody) {
  const ScratchFolder folder;
  folder.write("box.toml",
               "[[host]]\nname = \"box\"\ngpus = \"2xA100-40GB\"\nnuma = 2\ncores = 4096\n");
  for (const char* const binding : {"node", "exclusive"}) {
    const Ran ran = muster({"tasks",
                            "--inventory",
                            "box.toml",
                            "--sweep",
                            "x=1..4",
                            "--need-gpus",
                            "1",
                            "--numa-binding",
                            binding,
                            "--run-dir",
                            binding,
                            "--",
                            "echo",
                            "ran {x}"},
                           folder);
    EXPECT_EQ(ran.code, 0) << ran.err;
  }
}

TEST(Tasks, ResultsGoIntoAFileThatIsReplacedOrAPipe) {
  const ScratchFolder folder;
  folder.write("old.csv", "as it was");
  folder.write("s.toml", task_table("one", "cat old.csv"));
  ASSERT_EQ(muster({"tasks", "s.toml", "--run-dir", "run", "--csv", "old.csv"}, folder).code, 0);
  EXPECT_EQ(log_of_task(folder, "one"), "as it was");
  EXPECT_THAT(read_file(folder.path() + "/old.csv"), HasSubstr("name,"));
  // The table comes first, so that a file that fails after all costs no more than itself.
  const Ran pipe = muster({"tasks", "s.toml", "--run-dir", "pipe", "--csv", "/dev/stdout"}, folder);
  EXPECT_THAT(in_order(pipe.out, {"restarts", "one", "done", "name,state", "one,done"}),
              testing::IsEmpty());
}

TEST(Tasks, AProgressBarDoesNotFillTheCard) {
  const ScratchFolder folder;
  folder.write("s.toml",
               task_table("bar", "seq 9000 | tr '\\n' '\\r'; printf 'broken\\r'; exit 3"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_LT(ran.err.size(), 2000U);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("| broken\n"), Not(HasSubstr("8999"))));
}

TEST(Tasks, AStartThatFindsNoDescriptorsWaits) {
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.program = "/bin/sh";
  const Ran ran = muster(
      {"-c",
       cat("ulimit -n 40; exec '",
           MUSTER_BINARY_DIR,
           "/bin/muster' tasks --cpus 60 --run-dir run --json --sweep i=1..40 -- sleep 0.3")},
      folder,
      settings);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("Too many open files"));
  const json document = json::parse(ran.out);
  for (const json& task : document["tasks"])
    EXPECT_EQ(task["attempts"].size(), 1U);
}

TEST(Tasks, ARemovedFolderIsAnErrorInALine) {
  const ScratchFolder folder;
  for (const char* const command : {"tasks --sweep i=1,2 -- echo {i}",
                                    "tasks --resume run",
                                    "tasks --dry-run --sweep i=1,2 -- echo {i}",
                                    "run -n 1 true",
                                    "run --hosts localhost:1 true",
                                    "report"}) {
    const Ran ran =
        from_shell(cat("mkdir gone; cd gone; rmdir ../gone; exec \"$0\" ", command), folder)
            .finish();
    EXPECT_EQ(ran.code, 1) << command;
    EXPECT_THAT(ran.err, HasSubstr("change to one that exists")) << command;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << command << ": " << ran.err;
  }
}

TEST(Tasks, LineEndsOfWindowsAreNamed) {
  const ScratchFolder folder;
  std::filesystem::permissions(folder.write("t.sh", "#!/bin/sh\r\ntrue\r\n"),
                               std::filesystem::perms::owner_all);
  for (const Ran& ran :
       {muster({"tasks", "--run-dir", "run", "--sweep", "i=1", "--", "./t.sh"}, folder),
        muster({"run", "-n", "1", "./t.sh"}, folder)}) {
    EXPECT_NE(ran.code, 0);
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr("its lines end as on Windows"), HasSubstr("'/bin/sh\\r'")));
  }
}

// What the interpreter gets has the line's end too: it begins, and fails of that.
TEST(Tasks, LineEndsOfWindowsBehindAnInterpretersWordAreNamed) {
  const ScratchFolder folder;
  for (const auto& [first_line, what] : std::vector<std::pair<std::string, std::string>>{
           {"#!/usr/bin/env python3", "no interpreter 'python3\\r' was found"},
           {"#!/usr/bin/env sh", "no interpreter 'sh\\r' was found"},
           {"#!/bin/sh -e", "sh gets the option '-e\\r'"}}) {
    std::filesystem::permissions(folder.write("t", first_line + "\r\nexit\r\n"),
                                 std::filesystem::perms::owner_all);
    for (const Ran& ran :
         {muster({"tasks", "--run-dir", cat("run", what.size()), "--sweep", "i=1", "--", "./t"},
                 folder),
          muster({"run", "-n", "1", "./t"}, folder)}) {
      EXPECT_NE(ran.code, 0);
      EXPECT_THAT(
          ran.err,
          AllOf(HasSubstr("its lines end as on Windows"), HasSubstr(what), HasSubstr("sed -i")));
    }
  }
  // Perl takes it for a blank, and env may be asked to. Python takes it for a part of two options.
  for (const auto& [first_line, program] : std::vector<std::pair<std::string, std::string>>{
           {"#!/usr/bin/perl -w", "/usr/bin/perl"},
           {"#!/usr/bin/env -S perl -w", "/usr/bin/perl"},
           {"#!/usr/bin/python3 -Xdev", "/usr/bin/python3"},
           {"#!/usr/bin/python3 -Wignore", "/usr/bin/python3"}}) {
    std::filesystem::permissions(folder.write("t", first_line + "\r\nexit(0);\r\n"),
                                 std::filesystem::perms::owner_all);
    const bool is_there = std::filesystem::exists(program);
    EXPECT_EQ(muster({"run", "-q", "-n", "1", "./t"}, folder).code == 0, is_there) << first_line;
  }
}

TEST(Tasks, PythonFilesRunAsUnderRun) {
  const ScratchFolder folder;
  folder.write("t.py", "print('ran')\n");  // cannot be executed, and names no interpreter
  std::filesystem::create_directory(folder.path() + "/below");
  folder.write("below/u.py", "print('below')\n");
  folder.write(
      "s.toml",
      cat("[[task]]\nname = \"t\"\nargv = [\"t.py\"]\nneeds = { cpus = 1 }\n",
          "[[task]]\nname = \"u\"\nargv = [\"u.py\"]\ndir = \"below\"\nneeds = { cpus = 1 }\n",
          "[[task]]\nname = \"two\"\nranks = 2\nargv = [\"t.py\"]\nneeds = { cpus = 2 }\n"));
  const Ran ran = muster({"tasks", "s.toml", "--cpus", "4", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(log_of_task(folder, "t"), "ran\n");
  EXPECT_EQ(log_of_task(folder, "u"), "below\n");
  EXPECT_THAT(log_of_task(folder, "two"), AllOf(HasSubstr("[0] ran"), HasSubstr("[1] ran")));
}

// With three processes muster can be, and none of its tasks. --wait is a minute unless said.
TEST(Tasks, ARunThatCanNeverBeginEnds) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  const ScratchFolder folder;
  const Ran ran =
      with_few_processes(3, 0, "tasks -q --wait 1s --cpus 4 --sweep a=1..6 -- true {a}", folder)
          .finish();
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("expected to start a task, got no room for any in 1.0s"),
                    HasSubstr("raise the limit of processes (ulimit -u"),
                    HasSubstr("--resume")));
}

// Each launcher finds room for some of the ranks. There is always one that tries.
TEST(Tasks, ARunWhoseRanksCanNeverBeginEnds) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  const ScratchFolder folder;
  folder.write("s.toml",
               "[[task]]\nname = 't{i}'\neach = { i = '1..6' }\nneeds = { cpus = 1 }\n"
               "ranks = 30\nargv = ['sleep', '1000']\n");
  const Ran ran =
      with_few_processes(20, 5, "tasks -q --wait 1s --cpus 60 --run-dir run --json s.toml", folder)
          .finish();
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("expected to start a task, got no room for any in 1.0s"),
                    HasSubstr("ulimit -u"),
                    HasSubstr("--resume")));
}

// The limit is each launcher's own, so that no end of another task makes room.
TEST(Tasks, ALauncherWithTooFewDescriptorsFailsItsTask) {
  const ScratchFolder folder;
  folder.write("s.toml",
               "[[task]]\nname = 't'\nneeds = { cpus = 1 }\nranks = 100\nargv = ['true']\n");
  ProgramSettings settings;
  settings.program = "/bin/sh";
  const Ran ran = muster({"-c",
                          cat("ulimit -n 60; exec '",
                              MUSTER_BINARY_DIR,
                              "/bin/muster' tasks --cpus 1000 --run-dir run s.toml")},
                         folder,
                         settings);
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("Too many open files"), Not(HasSubstr("could not begin"))));
}

// How often the text has the part.
size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

// Runs six tasks, of which some cannot begin until others have ended. These wait for that.
void expect_all_to_begin(int limit, int place, const std::string& ranks) {
  const ScratchFolder folder;
  folder.write("s.toml",
               cat("[[task]]\nname = 't{i}'\neach = { i = '1..6' }\nneeds = { cpus = 1 }\n"
                   "argv = ['sh', '-c', ': <gate']\n",
                   ranks));
  const std::string gate = folder.path() + "/gate";
  ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
  ASSERT_EQ(::chmod(gate.c_str(), 0666), 0);
  Program run = with_few_processes(
      limit, place, "tasks --cpus 60 --run-dir run --json s.toml 2>said", folder);
  const auto said = [&] {
    return try_read_file(folder.path() + "/said").value_or("");
  };
  for (const Deadline deadline(std::chrono::seconds(60));
       !has_text(said(), "could not begin") && !deadline.passed();)
    ::usleep(10'000);
  const Fd opened(::open(gate.c_str(), O_RDWR | O_CLOEXEC));
  const Ran ran = run.finish();
  EXPECT_EQ(ran.code, 0) << said();
  EXPECT_THAT(said(), AllOf(HasSubstr("could not begin ("), HasSubstr("ulimit -u")));
  const json document = json::parse(ran.out);
  for (const json& task : document["tasks"]) {
    EXPECT_EQ(task["attempts"].size(), 1U);
    const auto name = task["name"].get<std::string>();
    EXPECT_LE(count_of(said(), name + " could not begin"), 1U) << said();
  }
}

TEST(Tasks, AStartThatFindsNoProcessesWaits) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  expect_all_to_begin(7, 3, "");
}

// The ranks are a launcher's, whose exit code cannot tell that it found no processes.
TEST(Tasks, RanksThatFindNoProcessesWait) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "another user is needed, who has no process";
  expect_all_to_begin(18, 4, "ranks = 2\n");
}

}  // namespace
}  // namespace muster
