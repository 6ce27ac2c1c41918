// The real program on a machine with two GPUs that a stand-in for the driver's library invents:
// which device each rank is told, plans that are executed, and leases between jobs.
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kFirst = "GPU-aaaaaaaa-0000-4000-8000-000000000001";
constexpr const char* kSecond = "GPU-bbbbbbbb-0000-4000-8000-000000000002";

class TwoGpus : public testing::Test {
 protected:
  TwoGpus() {
    const auto gpu = [](const char* uuid, const char* pci) {
      return cat(
          "|uuid=", uuid, ",name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=", pci);
    };
    settings_.environment = {
        {"MUSTER_NVML_LIBRARY", FAKE_NVML_LIBRARY},
        {"FAKE_NVML",
         cat("version=550.54", gpu(kFirst, "00000000:01:00.0"), gpu(kSecond, "00000000:02:00.0"))},
        {"CUDA_VISIBLE_DEVICES", "0,1"},
        {"MUSTER_RUNTIME_DIR", folder_.path()}};
  }

  Ran run(std::vector<std::string> args) { return muster(std::move(args), folder_, settings_); }

  static std::vector<std::string> sh(std::vector<std::string> flags, const std::string& script) {
    flags.insert(flags.begin(), {"run", "--run-dir", "out"});
    flags.insert(flags.end(), {"sh", "-c", script});
    return flags;
  }

  ScratchFolder folder_;
  ProgramSettings settings_;
};

constexpr const char* kTell =
    "echo $LOCAL_RANK $MUSTER_DEVICE $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER";

// Where hwloc's library is missing, the cores of a node are as /sys tells of them.
TEST_F(TwoGpus, RanksAreBoundToTheSameCoresWithoutHwloc) {
  folder_.write("lib/libhwloc.so.15", "no library");
  for (const char* binding : {"node", "exclusive"}) {
    const auto args = sh({"-q", "-n", "2", "--numa-binding", binding},
                         "grep Cpus_allowed_list /proc/self/status >$RANK.cpus");
    Strings cores;
    for (const char* library : {"", "/lib"}) {
      settings_.environment["LD_LIBRARY_PATH"] = cat(folder_.path(), library);
      const Ran ran = run(args);
      ASSERT_EQ(ran.code, 0) << ran.err;
      cores.push_back(
          cat(read_file(folder_.path() + "/0.cpus"), read_file(folder_.path() + "/1.cpus")));
    }
    EXPECT_EQ(cores[0], cores[1]) << binding;
  }
}

TEST_F(TwoGpus, RanksSeeTheJobsGpusInTheirOrder) {
  const Ran ran = run(sh({"--map", "1,0"}, kTell));
  EXPECT_EQ(ran.code, 0) << ran.err;
  const std::string both = cat(kSecond, ",", kFirst);
  EXPECT_THAT(ran.out,
              AllOf(HasSubstr(cat("[0] 0 ", kSecond, " ", both, " PCI_BUS_ID\n")),
                    HasSubstr(cat("[1] 1 ", kFirst, " ", both, " PCI_BUS_ID\n"))));
  EXPECT_THAT(ran.err, HasSubstr("list: place 1 of --map 1,0"));
}

TEST_F(TwoGpus, AGivenPlanIsExecuted) {
  const Ran plan =
      run({"plan", "--map-command", "echo 1; echo 0", "--visibility", "own", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  folder_.write("plan.json", plan.out);
  const Ran ran =
      run(sh({"-q", "--plan", "plan.json"}, "echo $MUSTER_LOCAL_RANK $CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(
      ran.out,
      AllOf(HasSubstr(cat("[0] 0 ", kSecond, "\n")), HasSubstr(cat("[1] 1 ", kFirst, "\n"))));
  EXPECT_EQ(json::parse(read_file(folder_.path() + "/out/plan.json")), json::parse(plan.out));
}

TEST_F(TwoGpus, APlanOfAnotherMachineIsRefused) {
  std::string text = run({"plan", "--json"}).out;
  for (size_t at = 0; (at = text.find("GPU-bbbb", at)) != std::string::npos;)
    text.replace(at, 8, "GPU-cccc");
  folder_.write("plan.json", text);
  const Ran ran = run(sh({"--plan", "plan.json"}, "echo started"));
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, AllOf(HasSubstr("GPU-cccc"), HasSubstr("(rank 1)")));
  EXPECT_THAT(run(sh({"--plan", "plan.json", "--gpus", "0"}, "true")).err,
              HasSubstr("no --gpus beside it"));
}

// Of a rank with several GPUs, each.
TEST_F(TwoGpus, APlanWithMoreDevicesThatAreNotHereIsRefused) {
  json plan = json::parse(run({"plan", "--gpus", "0,1", "--json"}).out);
  plan["world_size"] = 1;
  json more = plan["ranks"][1]["device"];
  plan["ranks"].erase(1);
  const auto result_of = [&](const json& device) {
    plan["ranks"][0]["more_devices"] = json::array({device});
    folder_.write("plan.json", plan.dump());
    const Ran ran = run(sh({"--plan", "plan.json"}, "echo started"));
    return cat(ran.code, " ", ran.out, ran.err);
  };
  EXPECT_THAT(result_of(more), HasSubstr("0 started"));
  json other = more;
  other["vendor"] = "amd";
  plan["ranks"][0]["device"]["vendor"] = "amd";
  EXPECT_THAT(result_of(other), HasSubstr("expected the vendor that the GPU has"));
  plan["ranks"][0]["device"].erase("vendor");
  other = more;
  other["id"] = other["uuid"] = "GPU-cccccccc-0000-4000-8000-000000000002";
  EXPECT_THAT(result_of(other),
              AllOf(HasSubstr("expected a GPU of host"),
                    HasSubstr("GPU-cccc"),
                    HasSubstr("(rank 0)"),
                    Not(HasSubstr("started"))));
  settings_.environment["FAKE_NVML"] += ",memory_code=15";  // the second is lost
  EXPECT_THAT(result_of(more),
              AllOf(HasSubstr("expected a GPU that can be used"), Not(HasSubstr("started"))));
}

// Holds GPU 0 until it is told to end.
class Holder {
 public:
  Holder(const ScratchFolder& folder, const ProgramSettings& settings)
      : program_({"run",
                  "-q",
                  "--gpus",
                  "0",
                  "--run-dir",
                  "holder",
                  "sh",
                  "-c",
                  "echo ready; while :; do sleep 0.05; done"},
                 folder,
                 settings) {
    program_.read_until("ready");
  }
  void end() {
    ::kill(program_.pid(), SIGTERM);
    EXPECT_EQ(program_.finish().code, 128 + SIGTERM);
  }

 private:
  Program program_;
};

TEST_F(TwoGpus, AGpuOfAnotherJobIsRefusedAndItsHolderNamed) {
  Holder holder(folder_, settings_);
  const Ran refused = run(sh({"--gpus", "0"}, "echo started"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, AllOf(HasSubstr(kFirst), HasSubstr("job "), HasSubstr("--wait")));
  EXPECT_EQ(run(sh({"--gpus", "0", "--no-lease"}, "true")).code, 0);
  EXPECT_THAT(run({"devices"}).out, HasSubstr("job "));
  holder.end();
  EXPECT_EQ(run(sh({"--gpus", "0"}, "true")).code, 0) << "free again";
}

// In a folder that no other test knows, by two kinds of login.
TEST_F(TwoGpus, AJobOfALoginAndOneOfCronDoNotGetTheSameGpu) {
  const std::string uuid = cat("GPU-", ::getpid(), "-0000-4000-8000-000000000003");
  settings_.environment["FAKE_NVML"] =
      cat("version=550.54|uuid=", uuid, ",name=Test GPU,total=8,free=8,cc=9.0");
  settings_.environment["MUSTER_RUNTIME_DIR"] = "";
  settings_.environment["XDG_RUNTIME_DIR"] = folder_.path();
  Holder holder(folder_, settings_);
  settings_.environment["XDG_RUNTIME_DIR"] = "";
  const Ran refused = run(sh({"--gpus", "0"}, "echo started"));
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, AllOf(HasSubstr(uuid), HasSubstr("held by job ")));
  holder.end();
}

// A process of another user, or init where this user cannot make one.
class OthersProcess {
 public:
  OthersProcess() {
    if (::geteuid() != 0)
      return;
    pid_ = ::fork();
    if (pid_ == 0) {
      if (::setuid(kNobody) != 0)
        ::_exit(1);
      ::pause();
      ::_exit(0);
    }
    const auto owner = [&] {
      struct stat info = {};
      return ::stat(cat("/proc/", pid_).c_str(), &info) == 0 ? info.st_uid : 0;
    };
    while (owner() != kNobody)
      ::sched_yield();
  }
  OthersProcess(const OthersProcess&) = delete;
  OthersProcess& operator=(const OthersProcess&) = delete;
  ~OthersProcess() {
    if (pid_ == 1)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  static constexpr uid_t kNobody = 65534;
  pid_t pid_ = 1;
};

TEST_F(TwoGpus, AnotherUsersProcessOnAGpuIsSaidBeforeTheStart) {
  const OthersProcess other;
  const std::string who = cat("GPU 0 (", kFirst, "): in use by pid ", other.pid(), " (");
  std::string& machine = settings_.environment["FAKE_NVML"];
  const size_t second = machine.rfind('|');
  machine.insert(second, cat(",procs=", other.pid(), ":1073741824/", ::getpid(), ":5"));
  for (const std::string share : {"-q", "--no-lease"}) {
    const Ran ran = run(sh({"--gpus", "0", share}, "echo started >&2"));
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(who), HasSubstr("1.0 GiB), whose memory")));
    EXPECT_LT(ran.err.find(who), ran.err.find("started"));
  }
  EXPECT_THAT(run(sh({"--gpus", "1"}, "true")).err, Not(HasSubstr("in use by")));
  folder_.write("s.toml", R"(
[[task]]
name = "a"
argv = ["true"]
needs = { gpus = 1 }
)");
  EXPECT_THAT(run({"tasks", "s.toml", "--run-dir", "tasks"}).err, HasSubstr(who));
}

TEST_F(TwoGpus, AnyFreeGpuIsAnotherOne) {
  Holder holder(folder_, settings_);
  const Ran ran = run(sh({"-q", "--gpus", "free:1"}, "echo $MUSTER_DEVICE"));
  EXPECT_EQ(ran.out, cat(kSecond, "\n")) << ran.err;
  holder.end();
}

// A plan takes no lease, and still tells what a start would get.
TEST_F(TwoGpus, APlanGoesAroundWhatOthersHold) {
  Holder holder(folder_, settings_);
  const Ran any = run({"plan", "--gpus", "free:1"});
  EXPECT_THAT(any.out, AllOf(HasSubstr("GPU 1"), HasSubstr("note: left out GPU 0: held by job ")))
      << any.err;
  const Ran few = run({"plan", "--gpus", "free:2"});
  EXPECT_EQ(few.code, 1);
  EXPECT_THAT(few.err, AllOf(HasSubstr(kFirst), HasSubstr("expected 2 GPUs"))) << few.out;
  EXPECT_THAT(run({"plan", "--gpus", "0"}).out,
              AllOf(HasSubstr("0  GPU 0"), HasSubstr(cat("note: ", kFirst, " held by job "))));
  holder.end();
  EXPECT_THAT(run({"plan", "--gpus", "free:2"}).out, Not(HasSubstr("note:")));
}

TEST_F(TwoGpus, WaitsForAGpu) {
  Holder holder(folder_, settings_);
  const Ran in_vain = run(sh({"--gpus", "0", "--wait=50ms"}, "echo started"));
  EXPECT_EQ(in_vain.code, 1);
  EXPECT_EQ(in_vain.out, "");
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd log(ends[0]);
  Fd write_end(ends[1]);
  ProgramSettings settings = settings_;
  settings.stderr_fd = write_end.get();
  Program waiter(
      sh({"-q", "--gpus", "0", "--wait=60s"}, "echo got $MUSTER_DEVICE"), folder_, settings);
  write_end.reset();
  char buffer[4096];
  const ssize_t n = ::read(log.get(), buffer, sizeof(buffer));
  EXPECT_THAT(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0))), HasSubstr(kFirst))
      << "it waits";
  holder.end();
  EXPECT_EQ(waiter.finish().out, cat("got ", kFirst, "\n"));
}

TEST_F(TwoGpus, TasksSeeTheirOwnGpusAndLeaseThem) {
  folder_.write("s.toml", R"(
[[task]]
name = "gpu-{i}"
argv = ["sh", "-c", "echo $MUSTER_DEVICE $CUDA_VISIBLE_DEVICES [$MUSTER_LEASE_FD]; echo yes >began{i}; while [ ! -e began1 ] || [ ! -e began2 ]; do sleep 0.01; done"]
each = { i = "1..2" }
needs = { gpus = 1 }
[[task]]
name = "ddp"
argv = ["sh", "-c", "echo rank $RANK $MUSTER_DEVICE $CUDA_VISIBLE_DEVICES"]
ranks = 2
needs = { gpus = 2 }
after = ["gpu-*"]
[[task]]
name = "cpu"
argv = ["sh", "-c", "echo none: $CUDA_VISIBLE_DEVICES."]
needs = { cpus = 1 }
)");
  const Ran ran = run({"tasks", "s.toml", "--run-dir", "out"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto log = [&](const std::string& name) {
    return read_file(cat(folder_.path(), "/out/logs/", name, "/0.log"));
  };
  EXPECT_THAT(log("gpu-1"), testing::StartsWith(cat(kFirst, " ", kFirst, " [")));
  EXPECT_THAT(log("gpu-1"), Not(HasSubstr("[]")));
  EXPECT_THAT(log("gpu-2"), HasSubstr(cat(kSecond, " ", kSecond)));
  EXPECT_THAT(log("ddp"),
              AllOf(HasSubstr(cat("rank 0 ", kFirst, " ", kFirst, ",", kSecond)),
                    HasSubstr(cat("rank 1 ", kSecond, " ", kFirst, ",", kSecond))));
  EXPECT_EQ(log("cpu"), "none: .\n");
}

TEST_F(TwoGpus, TasksWaitForAGpuOfAnotherJobAndSayWhose) {
  Holder holder(folder_, settings_);
  folder_.write("s.toml", R"(
[[task]]
name = "a"
argv = ["sh", "-c", "echo $MUSTER_DEVICE"]
needs = { gpus = 1 }
on = "0"
)");
  EXPECT_THAT(run({"tasks", "s.toml", "--explain", "a"}).out, HasSubstr("GPU 0 is held by job "));
  const json dry = json::parse(run({"tasks", "s.toml", "--dry-run", "--json"}).out);
  EXPECT_THAT(dry["held"].get<std::vector<std::string>>(),
              testing::ElementsAre(testing::StartsWith("GPU 0 is held by job ")));
  const Ran in_vain = run({"tasks", "s.toml", "--wait", "50ms", "--run-dir", "vain"});
  EXPECT_EQ(in_vain.code, 1);
  EXPECT_THAT(
      in_vain.err,
      AllOf(HasSubstr("some GPUs are held, and left to their holders"), HasSubstr("held by job ")));
  Program tasks({"tasks", "s.toml", "--run-dir", "out"}, folder_, settings_);
  holder.end();
  EXPECT_EQ(tasks.finish().code, 0);
  EXPECT_EQ(read_file(folder_.path() + "/out/logs/a/0.log"), cat(kFirst, "\n"));
}

// What has just ended has given its GPU back, also where another is just being started.
TEST_F(TwoGpus, ARunIsNoOtherJobToItself) {
  folder_.write("s.toml", R"(
[[task]]
name = "t{i}"
argv = ["sh", "-c", "sleep 0.005"]
needs = { gpus = 1 }
each = { i = "1..150" }
)");
  const Ran ran = run({"tasks", "s.toml", "--wait", "0s", "--run-dir", "out"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, Not(HasSubstr("other jobs")));
}

TEST_F(TwoGpus, WhatRunsElsewhereThanAskedIsNeverQuiet) {
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "0,0";
  const Ran hidden = run(sh({"-q", "-n", "1"}, "echo $MUSTER_DEVICE"));
  EXPECT_EQ(hidden.code, 0) << hidden.err;
  EXPECT_EQ(hidden.out, "cpu:0\n");
  EXPECT_THAT(hidden.err,
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES='0,0' shows 0 of 2 GPUs"),
                    HasSubstr("twice"),
                    HasSubstr("1 rank on CPU slots"),
                    Not(HasSubstr("rank  host"))));
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(run(sh({"-q", "-n", "1"}, "true")).err, "") << "hidden on purpose";
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "0,1";
  EXPECT_EQ(run(sh({"-q", "-n", "2"}, "true")).err, "");
  EXPECT_THAT(run(sh({"-q", "-n", "1", "--gpus", "0,1"}, "true")).err,
              HasSubstr("GPU 1 of --gpus 0,1 is not used"));
}

TEST_F(TwoGpus, AMapCommandIsToldTheRanksAndTheGpus) {
  const Ran ran =
      run(sh({"-n",
              "1",
              "--map-command",
              "echo $MUSTER_MAP_RANKS $MUSTER_MAP_GPUS on $MUSTER_MAP_HOST >>told; echo 1"},
             "echo $MUSTER_DEVICE"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, cat(kSecond, "\n"));
  const std::string told = read_file(folder_.path() + "/told");
  EXPECT_THAT(told, testing::StartsWith("1 0,1 on "));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << "it is asked once";
  EXPECT_THAT(run({"plan", "--map", "0", "--map-command", "echo 1"}).err,
              HasSubstr("expected one of"));
}

TEST_F(TwoGpus, APlanCountsThePrograms) {
  for (const char* const command : {"plan", "run"}) {
    std::vector<std::string> args = {command, "-n", "1", "./server", ":", "-n", "1", "./worker"};
    if (command == std::string("run"))
      args.insert(args.begin() + 1, "--dry-run");
    const Ran ran = run(args);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, AllOf(HasSubstr("GPU 0"), HasSubstr("GPU 1"))) << command;
  }
  const Ran after = run({"plan", "train.py", "--gpus", "1", "--epochs", "3"});
  EXPECT_EQ(after.code, 0) << after.err;
  EXPECT_THAT(after.err,
              AllOf(HasSubstr("--gpus after 'train.py' is taken for the program's own"),
                    Not(HasSubstr("--epochs"))));
  EXPECT_EQ(run({"plan", "--gpus", "1", "train.py", "--epochs", "3"}).err, "");
}

TEST_F(TwoGpus, AMaskThatIsReadInAnotherWayIsNeverQuiet) {
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "1 0";
  const Ran ran = run(sh({"-q"}, "echo $MUSTER_DEVICE"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, cat(kSecond, "\n"));
  EXPECT_THAT(ran.err, HasSubstr("entry 1, '1 0', is read as 1"));
  EXPECT_THAT(run({"tasks", "-q", "--sweep", "i=1,2", "--", "echo", "{i}"}).err,
              HasSubstr("entry 1, '1 0', is read as 1"));
}

// Both names are this machine's, whose GPUs cannot be had twice.
TEST_F(TwoGpus, AMachineIsPlannedOnce) {
  const Ran twice = run({"plan", "--hosts", "localhost:1,127.0.0.1:1"});
  EXPECT_EQ(twice.code, 2) << twice.out;
  EXPECT_THAT(
      twice.err,
      HasSubstr(cat("expected each machine once, got localhost and 127.0.0.1, which both have ",
                    kFirst)));
  EXPECT_EQ(run({"plan", "--hosts", "localhost:2"}).code, 0);
}

// While the GPU is waited for, nothing is known to be wrong any more.
TEST_F(TwoGpus, WhatCannotStartIsNotWaitedWith) {
  const Holder holder(folder_, settings_);
  const Ran program = run({"run", "--gpus", "0", "--wait", "nosuchprogram"});
  EXPECT_EQ(program.code, 127) << program.err;
  EXPECT_THAT(program.err, HasSubstr("nosuchprogram"));
  const Ran folder = run({"run", "--gpus", "0", "--wait", "--workdir", "nosuchfolder", "true"});
  EXPECT_EQ(folder.code, 2) << folder.err;
  EXPECT_THAT(folder.err, HasSubstr("--workdir: expected a folder, got 'nosuchfolder'"));
  const Ran time = run({"run", "--gpus", "0", "--wait", "1s", "true"});
  EXPECT_EQ(time.code, 2) << time.err;
  EXPECT_THAT(time.err, HasSubstr("write --wait=1s"));
}

TEST_F(TwoGpus, AProcessThatDrivesSeveralGpusSeesThem) {
  const Ran ran = run(sh({"-q", "-n", "1", "--gpus", "1,0", "--gpus-per-rank", "2"},
                         "echo $LOCAL_RANK of $WORLD_SIZE $CUDA_VISIBLE_DEVICES"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, cat("0 of 1 ", kSecond, ",", kFirst, "\n"));
  EXPECT_EQ(ran.err, "");
  EXPECT_THAT(run({"plan", "--gpus-per-rank", "2"}).out, HasSubstr("GPUs 0, 1  Test GPU"));
}

TEST_F(TwoGpus, TasksOnCpusBecauseOfAWrongMaskAreNeverQuiet) {
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "0,0";
  const std::vector<std::string> args = {"tasks", "-q", "--sweep", "i=1,2", "--", "echo", "{i}"};
  const Ran hidden = run(args);
  EXPECT_EQ(hidden.code, 0) << hidden.err;
  EXPECT_THAT(hidden.err, HasSubstr("CUDA_VISIBLE_DEVICES='0,0' shows 0 of 2 GPUs"));
  settings_.environment["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(run(args).err, "");
}

TEST_F(TwoGpus, WhatCannotBeWaitedForIsRefused) {
  EXPECT_THAT(run(sh({"--no-lease", "--wait=1m"}, "true")).err,
              HasSubstr("--wait: expected no --no-lease"));
}

}  // namespace
}  // namespace muster
