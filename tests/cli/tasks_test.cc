// `muster tasks` by the real program: what tasks get and leave, how runs end, and how they go on.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "muster/base/strings.h"
#include "muster/tasks/journal.h"
#include "muster/tasks/task_file.h"
#include "muster_program.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> in_order(const std::string& text, const std::vector<std::string>& pieces) {
  std::vector<std::string> missing;
  size_t at = 0;
  for (const std::string& piece : pieces) {
    const size_t found = text.find(piece, at);
    if (found == std::string::npos) {
      missing.push_back(piece);
    } else {
      at = found;
    }
  }
  return missing;
}

// A shell task; `more` are further lines of its table.
std::string task_table(const std::string& name, const std::string& script, const std::string& more = "") {
  return cat("[[task]]\nname = \"", name, "\"\nargv = [\"sh\", \"-c\", '''", script, "''']\n",
             more.find("needs") == std::string::npos ? "needs = { cpus = 1 }\n" : "", more, "\n");
}

std::string log_of_task(const ScratchFolder& folder, const std::string& name, int attempt = 0) {
  return read_file(cat(folder.path(), "/run/logs/", name, "/", attempt, ".log"));
}

// Waits until the file is there.
bool appears(const std::string& path) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!fs::exists(path)) {
    if (deadline.passed()) return false;
    ::usleep(2'000);
  }
  return true;
}

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
  for (const json& task : json::parse(again.out)["tasks"]) EXPECT_EQ(task["attempts"].size(), 1U);
  EXPECT_THAT(muster({"tasks", "s.toml", "--run-dir", "run"}, folder).err, HasSubstr("go on with --resume"));
  folder.write("other.toml", task_table("prepare", "true"));
  EXPECT_THAT(muster({"tasks", "other.toml", "--resume", "run"}, folder).err, HasSubstr("got others"));
}

TEST(Tasks, AFailureIsToldTriedAgainAndSkipsWhatDependsOnIt) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("flaky", "echo try $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 1 ]",
                                    "retries = 1\nback_off = \"10ms\"\n") +
                             task_table("bad", "echo the disk is on fire; exit 3") +
                             task_table("next", "true", "after = [\"bad\"]\n") + task_table("none", "true"));
  std::string spec = read_file(folder.path() + "/s.toml");
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("bad failed: exit code 3"), HasSubstr("| the disk is on fire"),
                             HasSubstr("next skipped: after bad, which failed")));
  EXPECT_EQ(log_of_task(folder, "flaky", 1), "try 1\n");
  const Ran fast = muster({"tasks", "s.toml", "--run-dir", "fast", "--fail-fast", "--jobs", "1"}, folder);
  EXPECT_EQ(fast.code, 1);
  EXPECT_THAT(fast.err, HasSubstr("bad failed (--fail-fast)"));
  EXPECT_THAT(muster({"tasks", "s.toml", "--explain", "next"}, folder).out,
              HasSubstr("next waits for bad ("));
  EXPECT_THAT(muster({"tasks", "s.toml", "--dry-run", "--jobs", "1"}, folder).out,
              HasSubstr("of 4 tasks these start first; 3 wait"));
}

TEST(Tasks, AProgramThatIsNotThereIsAFailureWithItsName) {
  const ScratchFolder folder;
  const Ran ran = muster(
      {"tasks", "--sweep", "x=1..2", "--run-dir", "run", "--need-cpus", "1", "--", "./absent-{x}"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("cannot start './absent-2'"));
}

TEST(Tasks, ATimeLimitEndsATaskWithAllThatItStarted) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("slow", "setsid sleep 1000 & echo $! >pid; sleep 1000",
                                    "time_limit = \"300ms\"\n"));
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("its time limit of 300ms is over"));
  EXPECT_EQ(::kill(std::stoi(read_file(folder.path() + "/pid")), 0), -1);
  const Ran whole = muster({"tasks", "s.toml", "--run-dir", "whole", "--time-limit", "50ms"}, folder);
  EXPECT_EQ(whole.code, 124);
}

TEST(Tasks, OneInterruptDrainsAndTwoEnd) {
  for (const int signals : {1, 2}) {
    const ScratchFolder folder;
    folder.write(
        "s.toml",
        task_table("first", "echo yes >began; while [ ! -e go ]; do sleep 0.01; done; echo yes >ended") +
            task_table("second", "true", "after = [\"first\"]\n"));
    Program program({"tasks", "s.toml", "--run-dir", "run"}, folder);
    ASSERT_TRUE(appears(folder.path() + "/began"));
    ::kill(program.pid(), SIGINT);
    if (signals == 2) {
      ::usleep(20'000);  // two signals that are pending at once are one
      ::kill(program.pid(), SIGINT);
    } else {
      // What is told to the journal's readers comes before the end: nothing new has started by then.
      folder.write("go", "");
    }
    const Ran ran = program.finish();
    EXPECT_EQ(ran.code, 128 + SIGINT) << ran.err;
    EXPECT_EQ(fs::exists(folder.path() + "/ended"), signals == 1);
    const std::vector<Task> tasks = task_file_of(read_file(folder.path() + "/run/tasks.json"), "t").tasks;
    const JournalState state = read_journal(folder.path() + "/run", tasks);
    EXPECT_EQ(state.results[0].state, signals == 1 ? TaskState::done : TaskState::waiting);
    EXPECT_EQ(state.results[1].state, TaskState::waiting);
    folder.write("go", "");
    const Ran again = muster({"tasks", "--resume", "run"}, folder);
    EXPECT_EQ(again.code, 0) << again.err;
  }
}

TEST(Tasks, ARunIsListedExplainedAndStopped) {
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.environment = {{"XDG_RUNTIME_DIR", folder.path()}};
  folder.write("s.toml", task_table("holds it", "echo yes >began; sleep 1000") +
                             task_table("waits", "true", "needs = { cpus = 1 }\n"));
  Program program({"tasks", "s.toml", "--cpus", "1", "--run-dir", "run"}, folder, settings);
  ASSERT_TRUE(appears(folder.path() + "/began"));
  EXPECT_THAT(muster({"ps"}, folder, settings).out, HasSubstr("tasks s.toml"));
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--explain", "waits"}, folder, settings).out,
              HasSubstr("0 of 1 CPUs of"));
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--explain", "waits"}, folder, settings).out,
              HasSubstr("holds it has the others"));
  EXPECT_THAT(muster({"tasks", "--resume", "run"}, folder, settings).err,
              HasSubstr("another run that goes on there"));
  EXPECT_EQ(muster({"stop", "--all"}, folder, settings).code, 0);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
}

TEST(Tasks, RanksAreAJobOfTheLauncher) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("ddp", "echo rank $RANK of $WORLD_SIZE in $MUSTER_TASK",
                                    "ranks = 2\nneeds = { cpus = 2 }\n"));
  const Ran ran = muster({"tasks", "s.toml", "--cpus", "2", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(log_of_task(folder, "ddp"),
              AllOf(HasSubstr("rank 0 of 2 in ddp"), HasSubstr("rank 1 of 2 in ddp")));
}

// A sweep over a machine of two GPUs that is not there: two halves share one of them.
TEST(Tasks, ASweepOverASimulatedMachine) {
  const ScratchFolder folder;
  folder.write("box.toml", "[[host]]\nname = \"box\"\ngpus = \"2xA100-40GB\"\nnvlink = \"all\"\ncores = 8\n");
  const std::string tell =
      "echo \"$MUSTER_SIMULATED [$CUDA_VISIBLE_DEVICES] $MUSTER_DEVICE\"; echo '{\"score\": 0.{x}}'";
  const auto sweep = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"tasks", "--inventory", "box.toml", "--sweep", "x=1..3"});
    flags.insert(flags.end(),
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
}

TEST(Tasks, WhatIsWrongIsToldBeforeAnythingStarts) {
  const ScratchFolder folder;
  const Ran absent = muster({"tasks", "absent.toml"}, folder);
  EXPECT_EQ(absent.code, 2);
  EXPECT_EQ(
      absent.err,
      "muster tasks: expected a file of tasks, got 'absent.toml', which is not there; correct the path\n");
  folder.write("box.toml", "[[host]]\nname = \"box\"\ngpus = \"2xA100-40GB\"\ncores = 8\n");
  folder.write("one.toml", "[[host]]\nname = \"one\"\ngpus = \"1xA100-40GB\"\ncores = 8\n");
  folder.write("s.toml", "[[task]]\nname = \"big\"\nargv = [\"true\"]\nneeds = { gpus = 2 }\n");
  const Ran big = muster({"tasks", "s.toml", "--inventory", "one.toml", "--run-dir", "none"}, folder);
  EXPECT_EQ(big.code, 2);
  EXPECT_THAT(big.err,
              HasSubstr("muster tasks: s.toml:4:9: task big: expected needs that a host can meet ("));
  EXPECT_THAT(big.err,
              HasSubstr("one.toml has 1 GPU and 8 cores), got 2 GPUs: the most that a host has is 1"));
  EXPECT_FALSE(fs::exists(folder.path() + "/none"));
  // A run that goes on elsewhere knows where its tasks stand in the spec.
  ASSERT_EQ(muster({"tasks", "s.toml", "--inventory", "box.toml", "--run-dir", "run"}, folder).code, 0);
  EXPECT_THAT(muster({"tasks", "--resume", "run", "--inventory", "one.toml"}, folder).err,
              HasSubstr("s.toml:4:9: task big: expected needs"));
}

TEST(Tasks, WaysToOtherHostsWithoutHosts) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "touch began"));
  for (const char* flag : {"--ssh", "--remote-muster"}) {
    const Ran ran = muster({"tasks", "s.toml", flag, "x"}, folder);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, HasSubstr(cat(flag, ": expected --hosts")));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/began"));
}

// A file system that takes no more bytes is here a process that may write none into a file.
TEST(Tasks, ARunWhoseJournalIsFullEndsAndCanBeResumed) {
  const ScratchFolder folder;
  const auto within = [&](int blocks) {
    return Program(
               {"-c", cat("trap '' XFSZ; ulimit -f ", blocks, "; exec '", MUSTER_BINARY_DIR,
                          "/bin/muster' tasks ", "--run-dir run --sweep a=1..200 --need-cpus 1 -- echo {a}")},
               folder, {.program = "/bin/sh"})
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
  const auto done =
      std::count_if(tasks.begin(), tasks.end(), [](const auto& task) { return task.at("state") == "done"; });
  EXPECT_EQ(done, 200);
}

TEST(Tasks, ResultFilesThatCannotBeWrittenAreToldFirst) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "touch began"));
  folder.write("old.csv", "as it was");
  for (const char* flag : {"--csv", "--html"}) {
    const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run", flag, "absent/r"}, folder);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, AllOf(HasSubstr(cat(flag, ": expected a file that can be written, got '")),
                               HasSubstr("absent/r': No such file or directory; give another")));
    EXPECT_THAT(muster({"tasks", "s.toml", "--run-dir", "run", flag, "."}, folder).err,
                HasSubstr("Is a directory"));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/began"));
  EXPECT_FALSE(fs::exists(folder.path() + "/run"));
  folder.write("fails.toml", task_table("one", "cat old.csv"));
  ASSERT_EQ(muster({"tasks", "fails.toml", "--run-dir", "run", "--csv", "old.csv"}, folder).code, 0);
  EXPECT_EQ(log_of_task(folder, "one"), "as it was");
  EXPECT_THAT(read_file(folder.path() + "/old.csv"), HasSubstr("name,"));
  // The table comes first, so that a file that fails after all costs no more than itself.
  const Ran pipe = muster({"tasks", "s.toml", "--run-dir", "pipe", "--csv", "/dev/stdout"}, folder);
  EXPECT_THAT(in_order(pipe.out, {"attempts", "one", "done", "name,state", "one,done"}), testing::IsEmpty());
}

// An sbatch that says that it was called.
ProgramSettings with_sbatch(const ScratchFolder& folder) {
  folder.write("bin/sbatch", "#!/bin/sh\necho called >>called\necho 41\n");
  fs::permissions(folder.path() + "/bin/sbatch", fs::perms::owner_all);
  ProgramSettings settings;
  settings.environment = {{"PATH", folder.path() + "/bin:/usr/bin:/bin"}};
  return settings;
}

TEST(Tasks, ADryRunOfSlurmSubmitsNothing) {
  const ScratchFolder folder;
  const ProgramSettings settings = with_sbatch(folder);
  folder.write("s.toml", task_table("a{i}", "true", "each = { i = \"1..9\" }\n") +
                             task_table("last", "true", "after = [\"a*\"]\n"));
  const std::vector<std::string> submit = {"tasks", "s.toml", "--submit", "slurm", "--run-dir", "run"};
  auto args = submit;
  args.insert(args.end(), {"--dry-run", "--sbatch=--partition=gpu"});
  const Ran dry = muster(args, folder, settings);
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(
      in_order(dry.out, {"# JOB0: a1, a2, a3, a4, a5 and 4 more\nsbatch --partition=gpu", "--array=0-8",
                         "run/slurm/0.sh\n    #!/bin/sh\n", "--exec-element", "# JOB1: last\n",
                         "--dependency=afterok:JOB0 ", "10 tasks as 2 jobs; nothing was submitted"}),
      testing::IsEmpty())
      << dry.out;
  EXPECT_FALSE(fs::exists(folder.path() + "/run"));
  EXPECT_FALSE(fs::exists(folder.path() + "/called"));
  const std::vector<std::vector<std::string>> refused = {{"--gpus", "0"},
                                                         {"--cpus", "1"},
                                                         {"--numa-binding", "none"},
                                                         {"--no-lease"},
                                                         {"--inventory", "x"},
                                                         {"--jobs", "1"},
                                                         {"--wait", "1s"},
                                                         {"--explain", "a1"},
                                                         {"--fail-fast"},
                                                         {"--time-limit", "1h"},
                                                         {"--shutdown-timeout", "1s"},
                                                         {"--json"},
                                                         {"--csv", "r"},
                                                         {"--html", "r"}};
  for (const auto& flag : refused) {
    args = submit;
    args.insert(args.end(), flag.begin(), flag.end());
    const Ran ran = muster(args, folder, settings);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err,
                HasSubstr(cat("--submit slurm and ", flag[0], ": expected one of them, got both; ")));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/called"));
  EXPECT_EQ(muster(submit, folder, settings).code, 0);
  EXPECT_TRUE(fs::exists(folder.path() + "/called"));
}

// What a task does when it runs: says so, and that it came to its end, in files of its own.
constexpr const char* kCountingScript =
    "echo x >>began-$MUSTER_TASK; sleep 0.0$(( $MUSTER_ATTEMPT + 1 )); echo x >>ended-$MUSTER_TASK";

size_t lines_in(const std::string& path) {
  std::ifstream file(path);
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

// Kills the runner at random moments, and goes on each time: nothing is lost, and what the journal has as
// done does not run again.
void kill_and_resume(unsigned seed, int num_tasks, int kills) {
  std::mt19937 random(seed);
  const ScratchFolder folder;
  folder.write("s.toml",
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
    ASSERT_TRUE(ran.code == 0 || (kill < kills && ran.code == 128 + SIGKILL)) << ran.code << ran.err;
    if (!fs::exists(run + "/tasks.json")) {  // it had not begun yet: begin anew
      fs::remove_all(run);
      continue;
    }
    args = {"tasks", "-q", "--resume", "run"};
    const std::vector<Task> tasks = task_file_of(read_file(run + "/tasks.json"), "t").tasks;
    if (!fs::exists(run + "/journal")) continue;
    const JournalState state = read_journal(run, tasks);
    for (size_t i = 0; i < state.results.size(); ++i) {
      const std::string& name = tasks[i].name;
      const auto& attempts = state.results[i].attempts;
      for (size_t a = 0; a < attempts.size(); ++a) EXPECT_EQ(attempts[a].attempt, static_cast<int>(a));
      if (state.results[i].state != TaskState::done) {
        EXPECT_NE(ran.code, 0) << name << " was lost";
        continue;
      }
      EXPECT_GE(count("ended", name), 1U) << name << " was lost";
      const size_t begun = begun_when_done.emplace(name, count("began", name)).first->second;
      EXPECT_EQ(count("began", name), begun) << name << " was done and ran again";
    }
    if (ran.code == 0) return;
  }
  FAIL() << "the last run was to come to its end";
}

// MUSTER_KILL_ROUNDS: so many, and longer ones, as the test cli.tasks_killed_often does.
TEST(Tasks, KilledAtAnyMomentARunGoesOn) {
  const auto rounds = parse_int(get_env("MUSTER_KILL_ROUNDS").value_or(""));
  for (unsigned round = 0; round < rounds.value_or(6); ++round) {
    SCOPED_TRACE(cat("round ", round));
    kill_and_resume(1'000 + round, rounds ? 40 : 12, rounds ? 12 : 5);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace muster
