// `muster tasks` by the real program: what tasks get and leave, and what is told of it. How runs go on is
// tasks_resume_test.cc's part.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"
#include "tasks_program.h"

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
  for (const json& task : results["tasks"]) EXPECT_EQ(task["attempts"].size(), 1U);
  EXPECT_THAT(muster({"tasks", "s.toml", "--run-dir", "run"}, folder).err, HasSubstr("go on with --resume"));
  fs::remove(folder.path() + "/run/journal");
  EXPECT_THAT(muster({"tasks", "--resume", "run"}, folder).err, HasSubstr("expected the records of the run"));
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

TEST(Tasks, TimesThatAreNoneAreRefused) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "touch began"));
  for (const auto& [flag, text] : {std::pair("--time-limit", "0"),
                                   {"--time-limit", "0s"},
                                   {"--wait", "soon"},
                                   {"--shutdown-timeout", "x"}}) {
    const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run", flag, text}, folder);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, AllOf(HasSubstr(cat(flag, ": ")), HasSubstr(cat("got '", text, "'"))));
  }
  EXPECT_FALSE(fs::exists(folder.path() + "/run"));
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

}  // namespace
}  // namespace muster
