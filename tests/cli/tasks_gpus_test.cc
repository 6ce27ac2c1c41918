// The real `muster tasks` on a machine with two GPUs that a stand-in for the driver's library
// invents: what becomes of tasks whose GPUs cannot be leased, and what their ranks see.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "muster/base/env.h"
#include "muster_program.h"
#include "tests/cli/tasks_program.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kGpuZero = "GPU-cccccccc-0000-4000-8000-000000000001";
constexpr const char* kGpuOne = "GPU-dddddddd-0000-4000-8000-000000000002";

class TasksOnTwoGpus : public testing::Test {
 protected:
  TasksOnTwoGpus() { use_memory(8'589'934'592); }

  // That is free of the 8 GiB of each GPU.
  void use_memory(uint64_t free) {
    const auto gpu = [&](const char* uuid, const char* pci) {
      return cat(
          "|uuid=", uuid, ",name=Test GPU,total=8589934592,free=", free, ",cc=9.0,pci=", pci);
    };
    settings_.environment = {{"MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY},
                             {"FAKE_NVML",
                              cat("version=550.54",
                                  gpu(kGpuZero, "00000000:01:00.0"),
                                  gpu(kGpuOne, "00000000:02:00.0"))},
                             {"CUDA_VISIBLE_DEVICES", "0,1"},
                             {"MUSTER_RUNTIME_DIR", folder_.path()}};
  }

  Ran tasks(const std::string& spec, std::vector<std::string> flags = {}) {
    folder_.write("t.toml", spec);
    flags.insert(flags.begin(), {"tasks", "--json", "--run-dir", "run"});
    flags.push_back("t.toml");
    return muster(std::move(flags), folder_, settings_);
  }

  static std::string state_of(const Ran& ran, size_t task) {
    return nlohmann::json::parse(ran.out)["tasks"][task]["state"];
  }

  ScratchFolder folder_;
  ProgramSettings settings_;
};

TEST_F(TasksOnTwoGpus, ALeaseThatCannotBeTakenEndsOneTask) {
  const Ran ran = tasks(
      task_table("removes", "rm -r $MUSTER_RUNTIME_DIR/muster-*", "needs = { gpus = 1 }") +
          task_table("hit", "true", "needs = { gpus = 1 }\nafter = ['removes']\npriority = 1") +
          task_table("next", "true", "needs = { gpus = 1 }\nafter = ['removes']") +
          task_table("cpu", "true", "after = ['removes']"),
      {"--jobs", "1"});
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(state_of(ran, 0), "done");
  EXPECT_EQ(state_of(ran, 1), "failed");
  EXPECT_EQ(state_of(ran, 2), "done") << "the folder was made anew";
  EXPECT_EQ(state_of(ran, 3), "done");
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("hit failed: lease: cannot open"),
                    HasSubstr("(GPU "),
                    HasSubstr("or give --no-lease")));
}

TEST_F(TasksOnTwoGpus, WhereNoLeaseCanBeTakenTheOtherTasksGoOn) {
  const Ran ran = tasks(task_table("spoils",
                                   "cd $MUSTER_RUNTIME_DIR; rm -r muster-*; touch muster-$(id -u)",
                                   "needs = { gpus = 1 }") +
                        task_table("gpu", "true", "needs = { gpus = 1 }\nafter = ['spoils']") +
                        task_table("cpu", "true", "after = ['spoils']") +
                        task_table("last", "true", "after = ['cpu']"));
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_EQ(state_of(ran, 1), "failed");
  EXPECT_EQ(state_of(ran, 2), "done");
  EXPECT_EQ(state_of(ran, 3), "done");
}

TEST_F(TasksOnTwoGpus, ALeaseThatCannotBeTakenIsTriedAgainAsATaskIs) {
  const Ran ran =
      tasks(task_table("removes", "rm -r $MUSTER_RUNTIME_DIR/muster-*", "needs = { gpus = 1 }") +
            task_table("hit",
                       "true",
                       "needs = { gpus = 1 }\nafter = ['removes']\nretries = 1\nback_off = '1ms'"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(state_of(ran, 1), "done");
}

TEST_F(TasksOnTwoGpus, RanksSeeWhatVisibilitySays) {
  const std::string spec =
      task_table("r", "echo $RANK: $CUDA_VISIBLE_DEVICES", "needs = { gpus = 2 }\nranks = 2");
  const auto log = [&] {
    return log_of_task(folder_, "r");
  };
  ASSERT_EQ(tasks(spec, {"--visibility", "own"}).code, 0);
  EXPECT_THAT(log(),
              AllOf(HasSubstr(cat("0: ", kGpuZero, "\n")), HasSubstr(cat("1: ", kGpuOne, "\n"))));
  std::filesystem::remove_all(folder_.path() + "/run");
  ASSERT_EQ(tasks(spec).code, 0);
  EXPECT_THAT(log(), HasSubstr(cat("1: ", kGpuZero, ",", kGpuOne, "\n")));
  std::filesystem::remove_all(folder_.path() + "/run");
  ASSERT_EQ(tasks(spec, {"--visibility", "all"}).code, 0);
  EXPECT_THAT(log(), HasSubstr(cat("1: ", kGpuZero, ",", kGpuOne, "\n")));
  std::filesystem::remove_all(folder_.path() + "/run");
  const Ran wrong = tasks(spec, {"--visibility", "some"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err,
              HasSubstr("--visibility: expected one of job, own, own-first, all, got 'some'"));
}

// What other programs use of a GPU's memory is waited for, and what it does not have is an error.
TEST_F(TasksOnTwoGpus, MemoryThatIsInUseIsWaitedFor) {
  use_memory(uint64_t{1} << 30);
  const std::string spec = task_table("large", "true", "needs = { gpus = 1, memory = '6GiB' }");
  const Ran shown = tasks(spec, {"--dry-run"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("\"waiting\": 1"));
  const Ran explained = tasks(spec, {"--explain", "large"});
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_THAT(explained.out,
              HasSubstr("GPU 0 has 1.0 GiB free: other programs use 7.0 GiB of its memory"));
  const Ran never =
      tasks(task_table("huge", "true", "needs = { gpus = 1, memory = '9GiB' }"), {"--dry-run"});
  EXPECT_EQ(never.code, 2);
  EXPECT_THAT(never.err, HasSubstr("t.toml:4:9: task huge: expected needs that a host can meet"));
  const Ran ran = tasks(spec, {"--wait", "10ms"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("GPU 0 has 1.0 GiB free of 8.0 GiB"), HasSubstr("got none in 10ms")));
}

// A task that takes the others' memory away from them, as their end would.
TEST_F(TasksOnTwoGpus, MemoryThatIsFreedIsSeen) {
  use_memory(uint64_t{1} << 30);
  const std::string full = settings_.environment["FAKE_NVML"];
  use_memory(uint64_t{8} << 30);
  const std::string freed = folder_.write("freed", settings_.environment["FAKE_NVML"]);
  settings_.environment["FAKE_NVML"] = "@" + folder_.write("machine", full);
  const Ran ran = tasks(task_table("large", "true", "needs = { gpus = 1, memory = '6GiB' }") +
                        task_table("frees", cat("mv ", freed, " ", folder_.path(), "/machine")));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(state_of(ran, 0), "done");
}

// A daemon that shows in nothing whose it is: while the task `beside` runs, which may have started
// it too, it is let be, and the GPU kept; it ends with that one.
TEST_F(TasksOnTwoGpus, AGpuIsKeptWhileWhatATaskLeftMayUseIt) {
  folder_.write("daemon.py",
                "import os, time\n"
                "os.closerange(0, 4096)\n"
                "open('pid.new', 'w').write(str(os.getpid()))\n"
                "os.rename('pid.new', 'pid')\n"
                "time.sleep(1000)\n");
  const Ran ran = tasks(
      task_table("leaver",
                 "while [ ! -e begun ]; do sleep 0.01; done; env -i setsid python3 daemon.py & "
                 "while [ ! -e pid ]; do sleep 0.01; done; echo $$ >leaver",
                 "needs = { gpus = 1 }\npriority = 1") +
      task_table(
          "beside",
          "echo >begun; while [ ! -s leaver ] || [ -d /proc/$(cat leaver) ]; do sleep 0.01; done",
          "needs = { gpus = 1 }\npriority = 1") +
      task_table("next", "! [ -d /proc/$(cat pid) ]", "needs = { gpus = 1 }\nafter = ['leaver']"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("leaver, or a task that still runs, has left process "));
  EXPECT_THAT(ran.err, HasSubstr("no other task gets what leaver had of its GPUs"));
}

// This one has its task's lease, and nothing else of it.
TEST_F(TasksOnTwoGpus, WhatHasATasksLeaseIsEndedWithTheTask) {
  const Ran ran =
      tasks(task_table("leaver",
                       "while [ ! -e begun ]; do sleep 0.01; done; "
                       "env -i setsid sh -c 'echo $$ >pid; exec sleep 1000' >/dev/null 2>&1 & "
                       "while [ ! -s pid ]; do sleep 0.01; done",
                       "needs = { gpus = 1 }\npriority = 1") +
            task_table("beside",
                       "echo >begun; while [ ! -e next ]; do sleep 0.01; done",
                       "needs = { gpus = 1 }\npriority = 1") +
            task_table("next",
                       "echo >next; ! [ -d /proc/$(cat pid) ]",
                       "needs = { gpus = 1 }\nafter = ['leaver']"));
  EXPECT_EQ(ran.code, 0) << ran.err;
}

// What every task finds as an element of Slurm's is what it finds here.
TEST_F(TasksOnTwoGpus, AnElementOfSlurmGetsWhatATaskGetsHere) {
  constexpr const char* kTellDevices =
      "echo $MUSTER_TASK $LOCAL_RANK: $MUSTER_DEVICE, sees $CUDA_VISIBLE_DEVICES "
      "$CUDA_DEVICE_ORDER >>"
      "$OUT/$MUSTER_TASK.$LOCAL_RANK";
  const std::string spec = task_table("two", kTellDevices, "needs = { gpus = 2 }") +
                           task_table("ranks", kTellDevices, "needs = { gpus = 2 }\nranks = 2") +
                           task_table("cpu", kTellDevices) +
                           task_table("cpu ranks", kTellDevices, "needs = { cpus = 2 }\nranks = 2");
  const auto told = [&](const std::string& name) {
    std::string all;
    for (const char* const task :
         {"two.", "ranks.0", "ranks.1", "cpu.", "cpu ranks.0", "cpu ranks.1"})
      all += read_file(cat(folder_.path(), "/", name, "/", task));
    return all;
  };
  for (const char* const name : {"here", "slurm"}) {
    std::filesystem::create_directories(folder_.path() + "/" + name);
  }
  settings_.environment["OUT"] = folder_.path() + "/here";
  const Ran here = tasks(spec, {"--cpus", "2"});
  ASSERT_EQ(here.code, 0) << here.err;
  EXPECT_THAT(
      told("here"),
      AllOf(HasSubstr(cat("two : ", kGpuZero, ",", kGpuOne, ", sees ", kGpuZero, ",", kGpuOne)),
            HasSubstr(cat("ranks 1: ", kGpuOne)),
            HasSubstr("cpu : cpu:0, sees\n")));
  settings_.environment["OUT"] = folder_.path() + "/slurm";
  const std::string sbatch = folder_.write("bin/sbatch", "#!/bin/sh\necho 41\n");
  std::filesystem::permissions(sbatch, std::filesystem::perms::owner_all);
  settings_.environment["PATH"] = cat(folder_.path(), "/bin:", get_env("PATH").value_or(""));
  const Ran submitted = muster(
      {"tasks", "--submit", "slurm", "--run-dir", "submitted", "t.toml"}, folder_, settings_);
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  int elements = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(folder_.path() + "/submitted/slurm")) {
    if (file.path().extension() != ".elements")
      continue;
    const std::string text = read_file(file.path());
    for (int i = 0; i < std::count(text.begin(), text.end(), '\n'); ++i, ++elements) {
      const Ran ran =
          muster({"tasks", "--exec-element", file.path(), std::to_string(i)}, folder_, settings_);
      EXPECT_EQ(ran.code, 0) << ran.err;
    }
  }
  EXPECT_EQ(elements, 4);
  EXPECT_EQ(told("slurm"), told("here"));
}

TEST_F(TasksOnTwoGpus, AnElementOfSlurmWhoseNeedsAreNotMetSaysSo) {
  const std::string elements = folder_.write(
      "e",
      R"({"name":"t","argv":["true"],"environment":{},"directory":"","run_dir":")" +
          folder_.path() +
          R"(","ranks":1,"need":{"gpus":1,"memory":107374182400,"model":"","cpus":0}})"
          "\n");
  const Ran ran = muster({"tasks", "--exec-element", elements, "0"}, folder_, settings_);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("task t: expected 1 GPU with 100.0 GiB free"),
                    HasSubstr("got 2 GPUs (Test GPU with 8.0 GiB free, ")));
}

}  // namespace
}  // namespace muster
