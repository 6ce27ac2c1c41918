#include "muster/tasks/slurm/submit.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"
#include "muster/tasks/slurm/element.h"
#include "muster/tasks/slurm/script.h"
#include "muster/tasks/spec/spec.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using namespace std::chrono_literals;

const SlurmOptions kSlurm{.run_dir = "/runs/a 1%", .exec_element = {"/opt/muster", "x"}};

SlurmPlan plan_of(const std::string& spec, const SlurmOptions& options = kSlurm) {
  return plan_slurm(tasks_of_text(spec, "t.toml"), options);
}

Task plain_task(const TaskNeed& need = {.cpus = 1}) {
  return {.name = "t", .argv = {"x"}, .needs = {need}};
}

TEST(SlurmPlan, TasksThatAskForTheSameAreOneArray) {
  const SlurmPlan plan = plan_of(R"(
[defaults]
needs = { gpus = 2, cpus = 8, model = "A100" }
time_limit = "26h"
[[task]]
name = "a-{i}"
argv = ["./train", "{i} $HOME", "x'y"]
each = { i = "1..3" }
[[task]]
name = "b"
argv = ["./other"]
[[task]]
name = "cpu"
argv = ["./cpu"]
needs = { cpus = 1 }
)");
  ASSERT_EQ(plan.arrays.size(), 2U);
  EXPECT_THAT(plan.arrays[0].tasks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.arrays[0].arguments,
              ElementsAre("--parsable",
                          "--job-name=muster",
                          "--array=0-3",
                          "--output=/runs/a 1%%/logs/slurm-%A_%a.log",
                          "--open-mode=append",
                          "--nodes=1",
                          "--ntasks=1",
                          "--gres=gpu:a100:2",
                          "--cpus-per-task=8",
                          "--time=1-02:00:00"));
  EXPECT_THAT(
      plan.arrays[0].script,
      HasSubstr("\nrun /opt/muster x '/runs/a 1%/slurm/0.elements' \"$SLURM_ARRAY_TASK_ID\"\n"));
  EXPECT_THAT(plan.arrays[0].elements, HasSubstr(R"("argv":["./train","2 $HOME","x'y"])"));
  EXPECT_THAT(plan.arrays[1].arguments, Contains("--array=0"));
  EXPECT_THAT(plan.arrays[1].arguments, Not(Contains(HasSubstr("gres"))));
  EXPECT_THAT(plan.notes, IsEmpty());
  EXPECT_EQ(dependency_argument(plan.arrays[1], {}), "");
}

constexpr const char* kChain = R"(
[defaults]
needs = { cpus = 1 }
[[task]]
name = "report"
argv = ["x"]
after = ["eval-*"]
[[task]]
name = "eval-{i}"
argv = ["x"]
each = { i = "1..3" }
after = ["train-{i}"]
[[task]]
name = "train-{i}"
argv = ["x"]
each = { i = "1..4" }
after = "prepare"
[[task]]
name = "prepare"
argv = ["x"]
[[task]]
name = "late-{i}"
argv = ["x"]
each = { i = "1..2" }
after = ["train-2", "train-3"]
[[task]]
name = "more-{i}"
argv = ["x"]
each = { i = "1..4" }
after = ["train-4"]
needs = { cpus = 2 }
)";

TEST(SlurmPlan, AfterBecomesDependencies) {
  const std::vector<Task> tasks = tasks_of_text(kChain, "t.toml");
  const SlurmPlan plan = plan_slurm(tasks, kSlurm);
  std::vector<std::string> said;
  std::vector<std::string> job_ids;
  for (const SlurmArray& array : plan.arrays) {
    said.push_back(cat(tasks[array.tasks[0]].name,
                       " x",
                       array.tasks.size(),
                       " ",
                       array.arguments[2],
                       " ",
                       dependency_argument(array, job_ids)));
    job_ids.push_back(cat(100 + job_ids.size()));
  }
  EXPECT_THAT(
      said,
      testing::UnorderedElementsAre("prepare x1 --array=0 ",
                                    "train-1 x4 --array=0-3 --dependency=afterok:100",
                                    "eval-1 x3 --array=0-2 --dependency=aftercorr:101",
                                    "late-1 x2 --array=0-1 --dependency=afterok:101_1:101_2",
                                    "more-1 x4 --array=0-3 --dependency=afterok:101_3",
                                    HasSubstr("report x1 --array=0 ")));
  EXPECT_THAT(said.back(), HasSubstr("report x1 --array=0 --dependency=afterok:"));
}

TEST(SlurmPlan, CorrespondingElementsKeepTheirIndices) {
  const SlurmPlan plan = plan_of(
      "[defaults]\nneeds={cpus=1}\nargv=['x']\n[[task]]\nname='a{i}'\neach={i='0..4'}\n"
      "[[task]]\nname='b{i}'\neach={i=[4,2]}\nafter=['a{i}']\n");
  ASSERT_EQ(plan.arrays.size(), 2U);
  EXPECT_THAT(plan.arrays[1].arguments, Contains("--array=2,4"));
  EXPECT_THAT(plan.arrays[1].tasks, ElementsAre(6, 5));
  const auto lines = split(plan.arrays[1].elements, '\n');
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_THAT(lines[3], IsEmpty());
  EXPECT_THAT(lines[4], HasSubstr("\"b4\""));
}

TEST(SlurmPlan, LargeArraysAreSubmittedInPieces) {
  SlurmOptions options = kSlurm;
  options.max_array = 10;
  const SlurmPlan plan =
      plan_of("[[task]]\nname='a{i}'\nargv=['x']\neach={i='1..25'}\nneeds={cpus=1}\n", options);
  ASSERT_EQ(plan.arrays.size(), 3U);
  EXPECT_EQ(plan.arrays[2].tasks.size(), 5U);
  EXPECT_EQ(plan.arrays[2].elements_path, "/runs/a 1%/slurm/2.elements");
}

TEST(SlurmPlan, RanksAreStartedByMuster) {
  const SlurmPlan plan = plan_of("[[task]]\nname='a'\nargv=['x','y']\nranks=4\nneeds={gpus=4}\n");
  EXPECT_THAT(plan.arrays[0].elements, HasSubstr(R"("argv":["x","y"],)"))
      << "the element starts them, when it knows its GPUs";
  EXPECT_THAT(plan.arrays[0].elements,
              HasSubstr(R"("ranks":4,"visibility":"job","need":{"gpus":4.0,)"));
  EXPECT_THAT(plan.arrays[0].arguments, Contains("--gres=gpu:4"));
}

TEST(SlurmPlan, RetriesAreTheScriptsBusiness) {
  Task task = plain_task();
  task.retries = 2;
  task.back_off = 1500ms;
  task.time_limit = 1h;
  const std::string script = slurm_script(task, "/f", kSlurm);
  EXPECT_THAT(
      script,
      HasSubstr("export MUSTER_ATTEMPT=$((${SLURM_RESTART_COUNT:-0} * 3))\nfor pause in 2 4; do\n"
                "  run timeout -k 30 3600 /opt/muster x /f \"$SLURM_ARRAY_TASK_ID\"\n"
                "  [ \"$code\" != 0 ] || exit 0\n"
                "  [ \"$code\" != 75 ] || end\n"));
  EXPECT_THAT(script,
              HasSubstr("done\nrun timeout -k 30 3600 /opt/muster x /f "
                        "\"$SLURM_ARRAY_TASK_ID\"\nend\n"));
  EXPECT_THAT(slurm_script(plain_task(), "/f", kSlurm),
              testing::AllOf(HasSubstr("\nrun /opt/muster x /f \"$SLURM_ARRAY_TASK_ID\"\nend\n"),
                             Not(HasSubstr("for pause"))));
  EXPECT_THAT(slurm_request(task, 0), Contains("--time=0-03:01:36"));
}

TEST(SlurmPlan, WhatSlurmCannotBeTold) {
  EXPECT_THAT(slurm_notes(plain_task({.gpus = 0.5, .memory_bytes = 1})).size(), 2U);
  Task task = plain_task({.gpus = 1});
  task.needs.push_back({.cpus = 1});
  EXPECT_THAT(slurm_notes(task), ElementsAre(HasSubstr("no alternatives")));
  EXPECT_THAT(slurm_request(plain_task({.gpus = 0.5}), 0), Contains("--gres=gpu:1"));
  task.on = "0,1";
  EXPECT_THROW(slurm_request(task, 0), Error);
  EXPECT_THROW(slurm_request(plain_task({.gpus = 1, .model = "A100 80GB"}), 0), Error);
  task = plain_task();
  task.argv = {"\xff"};
  EXPECT_THROW(plan_slurm({task}, kSlurm), Error);
  task = plain_task();
  task.priority = -2;
  EXPECT_THAT(slurm_request(task, 3), Contains("--nice=5"));
}

class SlurmScripts : public testing::Test {
 protected:
  SlurmScripts() {
    limited_.retries = 1;
    limited_.back_off = 0ms;
    limited_.time_limit = 1h;
    ranks_.ranks = 2;
  }

  // How the task's script ends when what it starts is this; with `signal`, which the script alone
  // gets when that has made the file "up".
  std::string ended_by(const Task& task, const std::string& program, int signal = 0) {
    const std::string up = folder_.path() + "/up";
    std::filesystem::remove(up);
    const std::string path =
        folder_.write("program", cat("#!/bin/sh\ncd ", folder_.path(), "\n", program, "\n"));
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    const std::string script =
        folder_.write("script", slurm_script(task, "/f", {.exec_element = {path}}));
    Environment environment = own_environment();
    environment["SLURM_ARRAY_TASK_ID"] = "0";
    environment["SLURM_JOB_ID"] = "7";
    environment["PATH"] = cat(folder_.path(), ":", environment["PATH"]);  // its scontrol
    int status = 0;
    const Child child = spawn_child({.argv = {"sh", script}, .environment = environment});
    const Deadline deadline(20s);
    while (signal != 0 && !std::filesystem::exists(up) && !deadline.passed())
      ::usleep(1'000);
    if (signal != 0)
      ::kill(child.pid, signal);
    EXPECT_EQ(::waitpid(child.pid, &status, 0), child.pid);
    return WIFSIGNALED(status) ? cat("signal ", WTERMSIG(status))
                               : cat("code ", WEXITSTATUS(status));
  }

  const ScratchFolder folder_;
  Task plain_ = plain_task();
  Task limited_ = plain_task();  // with a retry
  Task ranks_ = plain_task();
};

// The signal that ended a task is its script's, whoever stands between.
TEST_F(SlurmScripts, EndAsTheirTask) {
  EXPECT_EQ(ended_by(plain_, "kill -9 $$"), "signal 9");
  EXPECT_EQ(ended_by(limited_, "kill -9 $$"), "signal 9");
  EXPECT_EQ(ended_by(ranks_, "exit 137"), "signal 9") << "as `muster run` tells it";
  EXPECT_EQ(ended_by(ranks_, "exit 143"), "signal 15");
  EXPECT_EQ(ended_by(ranks_, "exit 255"), "code 255");
  EXPECT_EQ(ended_by(limited_, "exit 3"), "code 3");
  EXPECT_EQ(ended_by(limited_, "exit 127"), "code 127");
  EXPECT_EQ(ended_by(limited_, "exit 0"), "code 0");
  for (const int code : {147, 148, 149, 150})
    EXPECT_EQ(ended_by(ranks_, cat("exit ", code)), cat("code ", code))
        << "it would stop the script";
}

TEST_F(SlurmScripts, HaveAnElementStartedAgainThatHasStopped) {
  const std::string requeued = folder_.path() + "/requeued";
  const std::string scontrol =
      folder_.write("scontrol", cat("#!/bin/sh\necho \"$@\" >>", requeued, "\n"));
  std::filesystem::permissions(scontrol, std::filesystem::perms::owner_all);
  const std::string wait = "touch up; while :; do sleep 0.01; done";
  for (const Task& task : {plain_, limited_, ranks_}) {
    EXPECT_EQ(ended_by(task, "exit 75"), "code 75");
    EXPECT_EQ(read_file(requeued), "requeue 7\n");
    EXPECT_EQ(ended_by(task, cat("trap 'exit 75' USR1; ", wait), SIGUSR1), "code 75");
    EXPECT_EQ(read_file(requeued), "requeue 7\nrequeue 7\n") << "before the time limit";
    std::filesystem::remove(requeued);
    EXPECT_EQ(ended_by(task, cat("trap 'exit 75' TERM; ", wait), SIGTERM), "code 75");
    EXPECT_EQ(ended_by(task, "exit 76"), "code 76");
    EXPECT_FALSE(std::filesystem::exists(requeued)) << "who cancels it does not want it again";
  }
}

TEST_F(SlurmScripts, PassSignalsOn) {
  const std::string wait = "touch up; while :; do sleep 0.01; done";
  for (const Task& task : {plain_, limited_, ranks_}) {
    EXPECT_EQ(ended_by(task, cat("trap 'sleep 0.1; exit 7' TERM; ", wait), SIGTERM), "code 7");
    EXPECT_EQ(ended_by(task, cat("trap 'exit 0' USR1; ", wait), SIGUSR1), "code 0");
    EXPECT_EQ(ended_by(task, wait, SIGTERM), "signal 15");
  }
}

TEST_F(SlurmScripts, StartNothingAgainOnceTheyAreToEnd) {
  const std::string wait = "echo >>starts; touch up; while :; do sleep 0.01; done";
  EXPECT_EQ(ended_by(limited_, cat("trap 'exit 7' TERM; ", wait), SIGTERM), "code 7");
  EXPECT_EQ(read_file(folder_.path() + "/starts"), "\n");
  limited_.back_off = 1h;
  EXPECT_EQ(ended_by(limited_, "(sleep 0.3; touch up) & exit 3", SIGTERM), "code 3")
      << "in its pause";
}

// The shell's `wait` comes back for each.
TEST_F(SlurmScripts, GoOnAfterASignalThatEndsNothing) {
  for (const Task& task : {limited_, ranks_}) {
    std::filesystem::remove(folder_.path() + "/heard");
    EXPECT_EQ(
        ended_by(task,
                 "trap 'touch heard' USR2; touch up; until [ -e heard ]; do sleep 0.01; done; "
                 "sleep 0.1; exit 0",
                 SIGUSR2),
        "code 0");
  }
}

TEST(SlurmTime, IsRoundedUp) {
  EXPECT_EQ(slurm_time(1ms), "0-00:00:01");
  EXPECT_EQ(slurm_time(90s), "0-00:01:30");
  EXPECT_EQ(slurm_time(49h), "2-01:00:00");
}

class SlurmSubmit : public testing::Test {
 protected:
  SlurmSubmit() { std::filesystem::create_directories(folder_); }
  ~SlurmSubmit() override { std::filesystem::remove_all(folder_); }

  // An sbatch that keeps its arguments and answers with 41, 42 …; with `fail_at`, that call is
  // refused.
  SlurmOptions options(int fail_at = 0) {
    const std::string program = folder_ + "/sbatch";
    write_file(program,
               cat("#!/bin/sh\ncd '",
                   folder_,
                   "'\nn=$(($(cat n 2>/dev/null || echo 0) + 1))\n",
                   "echo $n >n\n[ $n = ",
                   fail_at,
                   " ] && { echo no such partition >&2; exit 1; }\n",
                   "printf '%s\\n' \"$@\" >args.$n\necho $((40 + n))\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return {.run_dir = folder_ + "/run dir",
            .exec_element = {"muster", "tasks", "--exec-element"},
            .sbatch = {program, "--partition=gpu"}};
  }

  const std::string folder_ =
      testing::TempDir() + "slurm_submit_test_" + std::to_string(::getpid());
};

TEST_F(SlurmSubmit, EveryArrayWithItsDependency) {
  const SlurmOptions slurm = options();
  const std::vector<Task> tasks = tasks_of_text(
      "[[task]]\nname='a'\nargv=['x']\n[[task]]\nname='b'\nargv=['x']\nafter=['a']\n", "t.toml");
  EXPECT_THAT(submit_slurm(plan_slurm(tasks, slurm), tasks, slurm), ElementsAre("41", "42"));
  const auto args = split(trim(read_file(folder_ + "/args.2")), '\n');
  EXPECT_EQ(args.front(), "--partition=gpu");
  EXPECT_THAT(args, Contains("--dependency=afterok:41"));
  EXPECT_EQ(args.back(), folder_ + "/run dir/slurm/1.sh");
  EXPECT_THAT(read_file(folder_ + "/run dir/slurm/jobs.json"), HasSubstr("\"muster.slurm/1\""));
  EXPECT_EQ(read_element(folder_ + "/run dir/slurm/1.elements", 0).name, "b");
}

TEST_F(SlurmSubmit, ARefusalSaysWhatWasSubmittedBefore) {
  const SlurmOptions slurm = options(2);
  const std::vector<Task> tasks = tasks_of_text(
      "[[task]]\nname='a'\nargv=['x']\n[[task]]\nname='b'\nargv=['x']\nafter=['a']\n", "t.toml");
  try {
    submit_slurm(plan_slurm(tasks, slurm), tasks, slurm);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "sbatch: expected the number of a job, got exit code 1 'no such partition'; "
              "submitted before and "
              "still there: scancel 41");
  }
}

TEST_F(SlurmSubmit, NoSbatch) {
  SlurmOptions slurm = options();
  slurm.sbatch = {"/nonexistent/sbatch"};
  const std::vector<Task> tasks = {plain_task()};
  EXPECT_THROW(submit_slurm(plan_slurm(tasks, slurm), tasks, slurm), SpawnError);
}

TEST_F(SlurmSubmit, AnElementBecomesItsProgram) {
  const std::string path = folder_ + "/elements";
  Task task = plain_task();
  task.environment = {{"MESSAGE", "a b"}, {"MUSTER_TASK", "another"}};
  task.directory = folder_;
  constexpr const char* kTell = "echo \"$MESSAGE $1 $MUSTER_TASK $MUSTER_RUN_DIR\" >said";
  task.argv = {"sh", "-c", kTell, "sh", "$x 'y'"};
  write_file(path, "\n" + element_line(task, folder_ + "/a run") + "\n");
  EXPECT_EXIT(exec_element(path, 1), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_file(folder_ + "/said"), cat("a b $x 'y' ", task.name, " ", folder_, "/a run\n"));
  EXPECT_THROW(exec_element(path, 0), Error);
  EXPECT_THROW(exec_element(path, 2), Error);
  EXPECT_THROW(exec_element(path, -1), Error);
  EXPECT_THROW(exec_element(folder_ + "/missing", 0), Error);
  task.argv = {"/nonexistent/program"};
  write_file(path, element_line(task, folder_ + "/a run") + "\n");
  EXPECT_THROW(exec_element(path, 0), SpawnError);
}

}  // namespace
}  // namespace muster
