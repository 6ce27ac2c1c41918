// `muster tasks` by the real program: how wrong usage is told, before anything starts; what is
// shown, and what is handed to Slurm, instead of a run.
#include <fcntl.h>
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
using testing::HasSubstr;

// Host box of four A100s and 16 cores; ok.toml is a task that leaves the file `began`.
class TasksUsage : public testing::Test {
 protected:
  TasksUsage() {
    folder_.write("box.toml", "[[host]]\nname = \"box\"\ngpus = \"4xA100-40GB\"\ncores = 16\n");
    folder_.write("ok.toml", spec("needs = { cpus = 1 }"));
  }

  // A task with one more line, at line 4.
  static std::string spec(const std::string& line) {
    return cat("[[task]]\nname = \"a\"\nargv = [\"touch\", \"began\"]\n", line, "\n");
  }

  Ran tasks(std::vector<std::string> args) const {
    args.insert(args.begin(), "tasks");
    return muster(std::move(args), folder_);
  }

  // That it is wrong usage, told with `text`, and that nothing was done.
  void expect_refused(const std::vector<std::string>& args, const std::string& text) const {
    const Ran ran = tasks(args);
    EXPECT_EQ(ran.code, 2) << join(args, " ") << "\n" << ran.err;
    EXPECT_THAT(ran.err, AllOf(testing::StartsWith("muster tasks: "), HasSubstr(text)))
        << join(args, " ");
    EXPECT_FALSE(exists("began") || exists("runs")) << join(args, " ");
  }

  bool exists(const std::string& name) const { return fs::exists(folder_.path() + "/" + name); }

  const ScratchFolder folder_;
};

TEST_F(TasksUsage, ASweepThatTheCommandDoesNotUseIsWarnedOf) {
  const Ran ran =
      tasks({"--inventory", "box.toml", "--dry-run", "--sweep", "lr=1,2", "--", "./train"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(
      ran.err,
      HasSubstr(
          "--sweep lr: the command has no {lr}, so tasks that differ in it alone run the same"));
  EXPECT_EQ(
      tasks({"--inventory", "box.toml", "--dry-run", "--sweep", "lr=1,2", "--", "./train", "{lr}"})
          .err,
      "");
}

TEST_F(TasksUsage, NeedsThatCannotBeMetAreToldWithTheirPlace) {
  struct Case {
    const char* line;
    std::vector<std::string> flags;
    const char* error;
  };
  const std::vector<Case> cases = {
      {"on = \"7\"",
       {},
       "q.toml:4:7: task a: on = '7': expected the index of a GPU that can be used, got 7"},
      {"on = \"host9:0\"",
       {},
       "q.toml:4:7: task a: on = 'host9:0': expected a host of the job (box)"},
      {"on = \"model=H100\"", {}, "q.toml:4:6: task a: expected needs that a host can meet ("},
      {"on = \"!0,!1,!2,!3\"", {}, "q.toml:4:6: task a: expected needs that a host can meet ("},
      {"ranks = 8", {}, "q.toml:4:9: task a: expected needs that a host can meet ("},
      {"needs = { gpus = 3 }", {"--gpus", "0-1"}, "q.toml:4:9: task a: expected needs"},
      {"needs = { cpus = 2 }", {"--cpus", "1"}, "q.toml:4:9: task a: expected needs"},
      {"needs = { model = \"h100\" }",
       {"--gpus", "model=A100"},
       "q.toml:4:9: task a: expected needs"},
  };
  for (const Case& one : cases) {
    folder_.write("q.toml", spec(one.line));
    std::vector<std::string> args = {"q.toml", "--inventory", "box.toml"};
    args.insert(args.end(), one.flags.begin(), one.flags.end());
    expect_refused(args, one.error);
    const Ran ran = tasks(args);
    EXPECT_THAT(ran.err, HasSubstr(cat("\n  ", one.line, "\n  "))) << "the line itself";
    EXPECT_THAT(ran.err, HasSubstr("; ")) << "a next step";
  }
  expect_refused({"--inventory",
                  "box.toml",
                  "--sweep",
                  "x=1,2",
                  "--need-gpus",
                  "9",
                  "--",
                  "touch",
                  "began",
                  "{x}"},
                 "--need-gpus 9: task x=1 and 1 more: expected needs");
}

TEST_F(TasksUsage, ARunThatGoesOnElsewhereKnowsWhereItsTasksStand) {
  folder_.write("one.toml", "[[host]]\nname = \"one\"\ngpus = \"1xA100-40GB\"\ncores = 8\n");
  folder_.write("big.toml", spec("needs = { gpus = 2 }"));
  expect_refused({"big.toml", "--inventory", "one.toml", "--run-dir", "none"},
                 "big.toml:4:9: task a: expected needs that a host can meet (");
  EXPECT_THAT(
      tasks({"big.toml", "--inventory", "one.toml"}).err,
      HasSubstr("one.toml has 1 GPU and 8 CPUs), got 2 GPUs: the most that a host has is 1"));
  EXPECT_FALSE(exists("none"));
  ASSERT_EQ(tasks({"big.toml", "--inventory", "box.toml", "--run-dir", "run"}).code, 0);
  EXPECT_THAT(tasks({"--resume", "run", "--inventory", "one.toml"}).err,
              HasSubstr("big.toml:4:9: task a: expected needs"));
}

TEST_F(TasksUsage, NoMemoryForASpecIsToldWithTheLimit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer needs more room for addresses";
#endif
  std::string numbers = "1";
  for (int i = 0; i < 1'000'000; ++i)
    numbers += ",1";
  folder_.write("big.toml", "x = [" + numbers + "]");
  const Ran ran = from_shell("ulimit -v 60000; exec \"$0\" tasks big.toml", folder_).finish();
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("got none"), HasSubstr("ulimit -v")));
}

TEST_F(TasksUsage, AFlagTakesOneValueAndLeavesTheSpec) {
  const Ran ran = tasks({"--submit",
                         "slurm",
                         "--dry-run",
                         "--sbatch=--partition=gpu",
                         "--sbatch",
                         "--account=a",
                         "ok.toml"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("sbatch --partition=gpu --account=a "));
  expect_refused(
      {"--sweep", "lr=1,2", "ok.toml"},
      "expected a spec file or --sweep … -- CMD, got both (ok.toml and --sweep lr=1,2); ");
  expect_refused({"ok.toml", "--", "touch", "began"}, "got both (ok.toml and a command); ");
  expect_refused({"--sweep", "lr=1,2"},
                 "--sweep: expected a command after --, got none; as --sweep");
}

TEST_F(TasksUsage, FlagsOfASweepAreNotDroppedWithASpec) {
  const std::vector<std::pair<std::string, std::string>> flags = {
      {"--retries", "retries = N"},
      {"--need-gpus", "needs = { gpus = N }"},
      {"--need-memory", "memory = "},
      {"--need-cpus", "needs = { cpus = N }"}};
  for (const auto& [flag, key] : flags) {
    const std::string value = flag == "--need-memory" ? "1GiB" : "0";
    expect_refused({flag, value, "ok.toml"},
                   cat(flag, ": expected --sweep beside it, got the file ok.toml; "));
    expect_refused({flag, value, "ok.toml"}, key);
  }
  ASSERT_EQ(tasks({"ok.toml", "--run-dir", "run"}).code, 0);
  fs::remove(folder_.path() + "/began");
  expect_refused({"--retries", "2", "--resume", "run"},
                 "--retries and --resume: expected one of them");
}

TEST_F(TasksUsage, WhatIsShownIsShownAsJsonToo) {
  folder_.write("two.toml",
                spec("needs = { gpus = 2 }") + "[[task]]\nname = \"b\"\nargv = [\"true\"]\n" +
                    "needs = [{ gpus = 4 }, { cpus = 3 }]\n" +
                    "[[task]]\nname = \"c\"\nargv = [\"true\"]\nafter = [\"a\"]\n");
  const Ran dry = tasks({"two.toml", "--inventory", "box.toml", "--dry-run", "--json"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  const json first = json::parse(dry.out);
  EXPECT_EQ(first["schema"], "muster.tasks.dry_run/1");
  EXPECT_EQ(first["waiting"], 1);
  EXPECT_EQ(first["held"], json::array());
  ASSERT_EQ(first["starts"].size(), 2U) << dry.out;
  const json& start = first["starts"][0];
  EXPECT_EQ(start["task"], "a");
  EXPECT_EQ(start["host"], "box");
  EXPECT_EQ(start["devices"].size(), 2U);
  EXPECT_EQ(start["gpus"].size(), 2U);
  EXPECT_EQ(start["needs"], "2 GPUs");
  EXPECT_EQ(start["alternative"], 0);
  EXPECT_EQ(first["starts"][1]["task"], "b");
  EXPECT_EQ(first["starts"][1]["alternative"], 1);
  EXPECT_EQ(first["starts"][1]["cpus"], 3);
  const Ran why = tasks({"two.toml", "--inventory", "box.toml", "--explain", "c", "--json"});
  ASSERT_EQ(why.code, 0) << why.err;
  EXPECT_EQ(json::parse(why.out),
            json({{"schema", "muster.tasks.explain/1"},
                  {"task", "c"},
                  {"state", "waiting"},
                  {"text", "no run yet; if one began now:\nc waits for a (running)\n"}}));
}

TEST_F(TasksUsage, EmptyValuesAreNoValues) {
  for (const char* const flag : {"--resume", "--run-dir"})
    expect_refused({"ok.toml", flag, ""}, cat(flag, ": expected a folder, got ''; "));
  for (const char* const flag : {"--csv", "--html", "--inventory", "--hostfile"})
    expect_refused({"ok.toml", flag, ""}, cat(flag, ": expected a file, got ''; "));
  for (const char* const flag :
       {"--gpus", "--hosts", "--wait", "--time-limit", "--explain", "--submit"})
    expect_refused({"ok.toml", flag, ""}, cat(flag, ": expected "));
  expect_refused({""}, "SPEC: expected a spec file, got ''");
}

TEST_F(TasksUsage, NumbersThatAreNone) {
  for (const char* const flag : {"--cpus", "--jobs"}) {
    for (const char* const value : {"0", "-1", "x", "1.5"})
      expect_refused({"ok.toml", cat(flag, "=", value)},
                     cat(flag, ": expected a whole number of at least 1, got '", value, "'; see"));
  }
  expect_refused({"ok.toml", "--cpus", "99999999999"},
                 "--cpus: expected a whole number of at most 2147483647, got '99999999999'");
  expect_refused({"--retries", "-1", "--sweep", "x=1", "--", "true"},
                 "--retries: expected a whole number of at least 0, got '-1'");
  for (const auto& [flag, value] : {std::pair("--need-gpus", "nan"),
                                    std::pair("--need-gpus", "x"),
                                    std::pair("--need-gpus", "0.0001"),
                                    std::pair("--need-gpus", "1.5"),
                                    std::pair("--need-cpus", "0"),
                                    std::pair("--need-memory", "x")})
    expect_refused({flag, value, "--sweep", "x=1", "--", "true"}, cat(flag, ": expected "));
  EXPECT_THAT(muster({"run", "--cpu-slots", "0", "true"}, folder_).err,
              HasSubstr("muster run: --cpu-slots: expected a whole number of at least 1, got '0'"));
}

TEST_F(TasksUsage, TimesThatAreNone) {
  for (const auto& [flag, text] : {std::pair("--time-limit", "0"),
                                   std::pair("--time-limit", "0s"),
                                   std::pair("--wait", "soon"),
                                   std::pair("--shutdown-timeout", "x")}) {
    expect_refused({"ok.toml", flag, text}, cat(flag, ": "));
    expect_refused({"ok.toml", flag, text}, cat("got '", text, "'"));
  }
}

TEST_F(TasksUsage, FlagsOfSbatchWithoutIt) {
  expect_refused({"ok.toml", "--sbatch=--partition=gpu"},
                 "--sbatch: expected --submit slurm beside it, got none");
}

TEST_F(TasksUsage, WaysToOtherHostsWithoutHosts) {
  for (const char* const flag : {"--ssh", "--remote-muster"})
    expect_refused({"ok.toml", flag, "x"}, cat(flag, ": expected --hosts"));
}

TEST_F(TasksUsage, FilesAndFoldersThatCannotBeUsed) {
  expect_refused({"absent.toml"},
                 "muster tasks: expected a file of tasks, got 'absent.toml', which is not there; "
                 "correct the path\n");
  for (const char* const flag : {"--csv", "--html"}) {
    expect_refused({"ok.toml", flag, "absent/r"},
                   cat(flag, ": expected a file that can be written, got '"));
    expect_refused({"ok.toml", flag, "absent/r"},
                   "absent/r': No such file or directory; give another");
    expect_refused({"ok.toml", flag, "."}, "Is a directory");
  }
  expect_refused({"ok.toml", "--inventory", "nof"}, "--inventory: cannot open");
  expect_refused({"ok.toml", "--inventory", "nof"},
                 "nof': No such file or directory; correct the path");
  expect_refused({"ok.toml", "--hostfile", "nof"},
                 "--hostfile: cannot open 'nof': No such file or directory; correct the path");
  expect_refused({"ok.toml", "--run-dir", "ok.toml/run"},
                 "--run-dir: expected a folder that can be made, got '");
  expect_refused({"ok.toml", "--run-dir", "ok.toml"},
                 "--run-dir: expected a folder that can be made, got '");
  ASSERT_EQ(tasks({"ok.toml", "--run-dir", "run"}).code, 0);
  fs::remove(folder_.path() + "/began");
  expect_refused({"ok.toml", "--run-dir", "run"},
                 "--run-dir: expected a folder without a run, got 'run', which");
}

TEST_F(TasksUsage, ARunThatGoesOnKeepsItsFolder) {
  folder_.write(
      "long.toml",
      "[[task]]\nname = \"a\"\nargv = [\"sh\", \"-c\", \"echo up >&2; exec cat fifo\"]\n" +
          std::string("needs = { cpus = 1 }\n"));
  ASSERT_EQ(::mkfifo((folder_.path() + "/fifo").c_str(), 0600), 0);
  Program first({"tasks", "long.toml", "--run-dir", "run"}, folder_);
  // The task holds the other end: opening this one waits until it runs.
  const Fd end(::open((folder_.path() + "/fifo").c_str(), O_WRONLY | O_CLOEXEC));
  expect_refused({"--resume", "run"}, "got another run that goes on there; see `muster ps`");
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.finish().code, 128 + SIGTERM);
}

TEST_F(TasksUsage, MoreCpusThanThereAreAreSaid) {
  const Ran ran =
      tasks({"ok.toml", "--inventory", "box.toml", "--cpus", "999999", "--run-dir", "run"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("--cpus 999999: "),
                    HasSubstr("box.toml has 16 CPUs, which that many tasks will share")));
  EXPECT_THAT(
      tasks({"ok.toml", "--inventory", "box.toml", "--cpus", "16", "--run-dir", "other"}).err,
      Not(HasSubstr("--cpus")));
}

// Where sbatch says that it was called.
class TasksSubmit : public TasksUsage {
 protected:
  TasksSubmit() {
    const std::string sbatch = folder_.write(
        "bin/sbatch", "#!/bin/sh\necho called >>called\necho $((40 + $(wc -l <called)))\n");
    fs::permissions(sbatch, fs::perms::owner_all);
    settings_.environment = {{"PATH", folder_.path() + "/bin:/usr/bin:/bin"}};
    folder_.write("s.toml",
                  task_table("a{i}", "true", "each = { i = \"1..9\" }\n") +
                      task_table("last", "true", "after = [\"a*\"]\n"));
  }

  Ran submit(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {"tasks", "s.toml", "--submit", "slurm", "--run-dir", "run"};
    args.insert(args.end(), more.begin(), more.end());
    return muster(std::move(args), folder_, settings_);
  }

 private:
  ProgramSettings settings_;
};

TEST_F(TasksSubmit, ADryRunSubmitsNothing) {
  const Ran dry = submit({"--dry-run", "--sbatch=--partition=gpu"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(in_order(dry.out,
                       {"# JOB0: a1, a2, a3, a4, a5 and 4 more\nsbatch --partition=gpu",
                        "--array=0-8",
                        "run/slurm/0.sh\n    #!/bin/sh\n",
                        "--exec-element",
                        "# JOB1: last\n",
                        "--dependency=afterok:JOB0 ",
                        "10 tasks as 2 jobs; nothing was submitted"}),
              testing::IsEmpty())
      << dry.out;
  EXPECT_FALSE(exists("run") || exists("called"));
}

TEST_F(TasksSubmit, WhatIsSlurmsIsRefused) {
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
    const Ran ran = submit(flag);
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(
        ran.err,
        HasSubstr(cat("--submit slurm and ", flag[0], ": expected one of them, got both; ")));
  }
  EXPECT_FALSE(exists("run") || exists("called"));
}

TEST_F(TasksSubmit, ASecondOneKeepsTheBooksOfTheFirst) {
  ASSERT_EQ(submit().code, 0);
  const std::string books = read_file(folder_.path() + "/run/slurm/jobs.json");
  const std::string calls = read_file(folder_.path() + "/called");
  const Ran again = submit();
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(
      again.err,
      AllOf(HasSubstr("--run-dir: expected a folder that nothing was submitted from, got '"),
            HasSubstr("/run', of jobs 41, 42; see squeue, and give another folder")));
  EXPECT_EQ(read_file(folder_.path() + "/run/slurm/jobs.json"), books);
  EXPECT_EQ(read_file(folder_.path() + "/called"), calls);
}

TEST(TasksFiles, AResultFileIsNeitherTheOtherNorTheSpec) {
  const ScratchFolder folder;
  const std::string spec = task_table("one", "touch started");
  folder.write("s.toml", spec);
  const auto refused = [&](std::vector<std::string> flags, const std::string& why) {
    flags.insert(flags.begin(), {"tasks", "s.toml", "--run-dir", "run"});
    const Ran ran = muster(flags, folder);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(why));
  };
  refused({"--csv", "same", "--html", "./same"}, "--csv names it too");
  refused({"--csv", "s.toml"}, "the tasks are read from it");
  EXPECT_EQ(read_file(folder.path() + "/s.toml"), spec);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/started"));
}

TEST(TasksFiles, AResultFileIsNoneThatTheRunReadsOrKeeps) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "true"));
  folder.write("box.json", muster({"devices", "--json"}, folder).out);
  folder.write("hosts.txt", "localhost\n");
  ASSERT_EQ(muster({"tasks", "-q", "s.toml", "--run-dir", "run"}, folder).code, 0);
  const auto refused = [&](const std::vector<std::string>& words,
                           const std::string& file,
                           const std::string& why) {
    for (const char* const flag : {"--csv", "--html"}) {
      std::vector<std::string> flags = {"tasks", flag, file};
      flags.insert(flags.end(), words.begin(), words.end());
      const std::string before = read_file(cat(folder.path(), "/", file));
      const Ran ran = muster(flags, folder);
      EXPECT_EQ(ran.code, 2) << file;
      EXPECT_THAT(ran.err, HasSubstr(cat(flag, ": expected a file that can be written, got '")));
      EXPECT_THAT(ran.err, HasSubstr(why));
      EXPECT_EQ(read_file(cat(folder.path(), "/", file)), before);
    }
  };
  for (const char* const file : {"run/journal", "run/tasks.json", "run/logs/one/0.log"})
    refused({"--resume", "run"}, file, "keeps its own there; give another");
  refused({"--resume", "run"}, "s.toml", "the tasks are read from it");
  refused({"s.toml", "--inventory", "box.json"}, "box.json", "the machine is read from it");
  refused({"s.toml", "--hostfile", "hosts.txt"}, "hosts.txt", "the hosts are read from it");
}

TEST(TasksFiles, AFolderWithTheRunOfAJobIsRefused) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("one", "true"));
  ASSERT_EQ(muster({"run", "-q", "-n", "1", "--run-dir", "run", "true"}, folder).code, 0);
  const Ran ran = muster({"tasks", "s.toml", "--run-dir", "run"}, folder);
  EXPECT_EQ(ran.code, 2) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("which has the run of a job (run.json); give another"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run/tasks.json"));
}

TEST(TasksFiles, AFolderWithSomebodysOwnFilesIsRefused) {
  for (const char* const file : {"tasks.json", "logs/one/notes"}) {
    const ScratchFolder folder;
    folder.write("s.toml", task_table("one", "true"));
    folder.write(file, "the user's own");
    const Ran ran = muster({"tasks", "s.toml", "--run-dir", "."}, folder);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("of no run; move that, or give another"));
    EXPECT_EQ(read_file(cat(folder.path(), "/", file)), "the user's own");
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/journal"));
  }
}

TEST(TasksFiles, AJobIsRefusedInTheFolderOfARunOfTasks) {
  const ScratchFolder folder;
  folder.write("s.toml", task_table("1", "true"));
  ASSERT_EQ(muster({"tasks", "-q", "s.toml", "--run-dir", "run"}, folder).code, 0);
  const std::string run = folder.path() + "/run";
  for (const char* const file : {"(journal)", "(tasks.json)"}) {
    const Ran ran = muster({"run", "-q", "-n", "1", "--run-dir", "run", "touch", "x"}, folder);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err,
                HasSubstr(cat("which has the run of muster tasks ", file, "; give another")));
    EXPECT_TRUE(std::filesystem::exists(run + "/logs/1/0.log"));
    EXPECT_FALSE(std::filesystem::exists(run + "/run.json"));
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/x"));
    std::filesystem::remove(run + "/journal");  // then tasks.json alone tells of it
  }
}

TEST_F(TasksUsage, AFolderWhoseNameIsNoTextIsNamed) {
  const ScratchFolder folder;
  const Ran ran = from_shell(
                      "d=$(printf 'a\\377b'); mkdir \"$d\" && cd \"$d\" && \"$0\" tasks --run-dir "
                      "run --sweep x=1 -- true; "
                      "code=$?; ls; exit $code",
                      folder)
                      .finish();
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("the path of this folder '"));
  EXPECT_THAT(ran.err,
              HasSubstr("expected texts in UTF-8, got other bytes; correct or rename them"));
  EXPECT_EQ(ran.out, "") << "no folder of a run that never was";
}

}  // namespace
}  // namespace muster
