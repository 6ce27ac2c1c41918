// The real program when things die: signals to it, its own death, what ranks leave behind.
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <fstream>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Pids that ranks printed as "pid N".
std::vector<Fd> pidfds(const std::string& text) {
  std::vector<Fd> fds;
  for (const std::string& line : split(text, '\n')) {
    const size_t at = line.find("pid ");
    if (at == std::string::npos)
      continue;
    fds.emplace_back(
        static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(line.substr(at + 4)), 0)));
  }
  return fds;
}

// Two ranks that say their pids and then sleep, with a handler for SIGTERM and SIGINT when `script`
// has one.
std::vector<std::string> sleepers(const std::string& script,
                                  std::vector<std::string> flags = {},
                                  const std::string& run_dir = "out") {
  std::vector<std::string> args = {"run", "-q", "-n", "2", "--run-dir", run_dir};
  args.insert(args.end(), flags.begin(), flags.end());
  // The second echo comes when both have said their pid: the test waits for one "ready" of each.
  args.insert(args.end(),
              {"sh", "-c", script + "echo pid $$; echo ready$RANK; while :; do sleep 0.05; done"});
  return args;
}

// For what is to end at once: long after the longest pause of a loaded machine, long before the
// waits that these tests must not meet.
constexpr milliseconds kSoon{20'000};

void wait_until_ready(Program& program) {
  program.read_until("ready0");
  program.read_until("ready1");
}

class GuardSignal : public testing::TestWithParam<int> {};

TEST_P(GuardSignal, StopsEverythingAndIsTheExitCode) {
  const ScratchFolder folder;
  Program program(sleepers(""), folder);
  wait_until_ready(program);
  const auto ranks = pidfds(program.read_until("ready1"));
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(program.pid(), GetParam());
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + GetParam());
  EXPECT_THAT(ran.err, HasSubstr(cat("stopped by ", signal_name(GetParam()))));
  for (const Fd& rank : ranks)
    EXPECT_TRUE(ends_within(rank, milliseconds(0)));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/out/failure.json"));
}

INSTANTIATE_TEST_SUITE_P(All,
                         GuardSignal,
                         testing::Values(SIGTERM, SIGINT, SIGHUP, SIGQUIT),
                         [](const auto& info) { return signal_name(info.param); });

// A control group with 256 MiB of memory below this process's own; its path is empty where none can
// be made.
class SmallGroup {
 public:
  SmallGroup() {
    for (const char* mount : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const std::string path = cat(mount, "/muster-test-", ::getpid());
      if (::mkdir(path.c_str(), 0755) != 0)
        continue;
      path_ = path;
      for (const char* limit : {"/memory.limit_in_bytes", "/memory.max"}) {
        if (std::ofstream(path + limit) << "268435456" << std::flush)
          return;
      }
      ::rmdir(path.c_str());
      path_.clear();
    }
  }
  SmallGroup(const SmallGroup&) = delete;
  SmallGroup& operator=(const SmallGroup&) = delete;
  ~SmallGroup() {
    if (!path_.empty())
      ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Guard, AnOutOfMemoryKillIsSaidToBeOne) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the launcher itself needs more than the control group has";
#endif
  const SmallGroup group;
  if (group.path().empty())
    GTEST_SKIP() << "no control group with a memory limit can be made here";
  const ScratchFolder folder;
  ProgramSettings settings;
  const std::string launcher = settings.program;
  settings.program = "sh";
  // `tail` keeps the whole of a line that never ends.
  const Ran ran = muster({"-c",
                          cat("echo $$ >",
                              group.path(),
                              "/cgroup.procs && exec ",
                              launcher,
                              " run -q -n 2 --run-dir out sh -c '[ $RANK = 0 ] && exec sleep 60; "
                              "exec tail /dev/zero'")},
                         folder,
                         settings);
  EXPECT_EQ(ran.code, 128 + SIGKILL) << ran.err;
  EXPECT_THAT(ran.err,
              HasSubstr("rank 1 failed first: killed by SIGKILL: out of memory (the kernel ended 1 "
                        "process of this control "
                        "group meanwhile, whose limit is 256.0 MiB)"));
}

// With a runtime folder of their own, so that other jobs of the tester are not seen, or ended.
ProgramSettings own_runtime(const ScratchFolder& folder) {
  ProgramSettings settings;
  settings.environment = {{"MUSTER_RUNTIME_DIR", folder.path()}};
  return settings;
}

TEST(Jobs, AreListedAndEndedByTheirId) {
  const ScratchFolder folder;
  const ProgramSettings settings = own_runtime(folder);
  EXPECT_EQ(muster({"ps"}, folder, settings).out, "no job of yours runs on this host\n");
  Program first(sleepers("", {"--rdzv-backend", "c10d", "--rdzv-id", "first"}), folder, settings);
  Program second(sleepers("trap 'echo saved$RANK; exit 0' TERM; ",
                          {"--rdzv-backend", "c10d", "--rdzv-id", "second"},
                          "second"),
                 folder,
                 settings);
  wait_until_ready(first);
  wait_until_ready(second);
  const std::string list = muster({"ps"}, folder, settings).out;
  EXPECT_THAT(list,
              testing::AllOf(testing::ContainsRegex(cat("first +", first.pid(), " ")),
                             testing::ContainsRegex(cat("second +", second.pid(), " ")),
                             HasSubstr("cpu:0 cpu:1"),
                             HasSubstr("sh -c")));
  EXPECT_THAT(muster({"ps", "--json"}, folder, settings).out, HasSubstr("\"num_ranks\": 2"));
  const Ran stop = muster({"stop", "sec"}, folder, settings);
  EXPECT_EQ(stop.code, 0) << stop.err;
  EXPECT_EQ(stop.out, cat("job second (pid ", second.pid(), ") has ended\n"));
  const Ran stopped = second.finish();
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
  EXPECT_THAT(stopped.out, HasSubstr("saved1"));
  EXPECT_EQ(muster({"stop", "sec"}, folder, settings).code, 2) << "gone";
  EXPECT_EQ(muster({"stop"}, folder, settings).code, 2);
  EXPECT_EQ(muster({"stop", "--all"}, folder, settings).code, 0);
  EXPECT_EQ(first.finish().code, 128 + SIGTERM);
}

TEST(Jobs, OneThatDoesNotEndIsKilledWithAllItHas) {
  const ScratchFolder folder;
  const ProgramSettings settings = own_runtime(folder);
  Program job(sleepers("trap '' TERM; ", {"--shutdown-timeout", "1h"}), folder, settings);
  wait_until_ready(job);
  const auto ranks = pidfds(job.read_until("ready1"));
  const Ran in_vain = muster({"stop", "--all", "--timeout", "50ms"}, folder, settings);
  EXPECT_EQ(in_vain.code, 1);
  EXPECT_THAT(in_vain.out, HasSubstr(cat("still runs after 50ms; muster stop --kill ", job.pid())));
  EXPECT_EQ(muster({"stop", "--kill", cat(job.pid())}, folder, settings).code, 0);
  EXPECT_EQ(job.finish().code, 128 + SIGKILL);
  for (const Fd& rank : ranks)
    EXPECT_TRUE(ends_within(rank, kSoon));
}

TEST(Guard, RanksGetTheSignalAndTimeToSave) {
  const ScratchFolder folder;
  Program program(sleepers("trap 'echo saved$RANK; exit 0' TERM; "), folder);
  wait_until_ready(program);
  ::kill(program.pid(), SIGTERM);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGTERM);
  EXPECT_THAT(ran.out, HasSubstr("saved0"));
  EXPECT_THAT(ran.out, HasSubstr("saved1"));
}

TEST(Guard, WhoIgnoresTheSignalIsKilledAfterTheGrace) {
  const ScratchFolder folder;
  Program program(sleepers("trap '' TERM; ", {"--shutdown-timeout", "200ms"}), folder);
  wait_until_ready(program);
  const auto ranks = pidfds(program.read_until("ready1"));
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
  for (const Fd& rank : ranks)
    EXPECT_TRUE(ends_within(rank, milliseconds(0)));
}

TEST(Guard, SecondInterruptDoesNotWait) {
  const ScratchFolder folder;
  // A grace that no test would live to see the end of.
  Program program(sleepers("trap 'echo not yet$RANK' INT; ", {"--shutdown-timeout", "1h"}), folder);
  wait_until_ready(program);
  ::kill(program.pid(), SIGINT);
  program.read_until("not yet0");
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.finish().code, 128 + SIGINT);
}

// A rank that is a shell around the real program, as start scripts are; `script` is that program.
std::vector<std::string> wrapped(const std::string& script, std::vector<std::string> flags = {}) {
  std::vector<std::string> args = {"run", "-q", "-n", "1", "--run-dir", "out"};
  args.insert(args.end(), flags.begin(), flags.end());
  args.insert(args.end(),
              {"sh",
               "-c",
               cat("sh -c \"",
                   script,
                   "echo pid \\$\\$; echo ready; while :; do sleep 0.05; done\"; true")});
  return args;
}

TEST(Guard, AProgramBehindAWrapperGetsTheWholeGrace) {
  const ScratchFolder folder;
  // Longer than leftovers get when nobody stopped the job.
  Program program(wrapped("trap 'echo asked; sleep 2.5; echo saved; exit 0' TERM; "), folder);
  program.read_until("ready");
  ::kill(program.pid(), SIGTERM);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGTERM);
  EXPECT_THAT(ran.out, HasSubstr("asked\nsaved\n"));
  EXPECT_THAT(ran.out, testing::Not(HasSubstr("asked\nasked"))) << "asked once";
}

TEST(Guard, WhatStaysBehindAWrapperIsKilledAfterTheGraceAndNamed) {
  const ScratchFolder folder;
  Program program(wrapped("trap '' TERM; ", {"--shutdown-timeout", "200ms"}), folder);
  const auto pids = pidfds(program.read_until("ready"));
  ASSERT_EQ(pids.size(), 1U);
  ::kill(program.pid(), SIGTERM);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGTERM);
  EXPECT_TRUE(ends_within(pids[0], milliseconds(0)));
  EXPECT_THAT(ran.err, HasSubstr("killed processes that ranks had left behind: process"));
}

TEST(Guard, AProgramBehindAWrapperHearsAnInterrupt) {
  const ScratchFolder folder;
  Program program(wrapped("trap 'echo saved; exit 0' INT; "), folder);
  program.read_until("ready");
  ::kill(program.pid(), SIGINT);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 128 + SIGINT);
  EXPECT_THAT(ran.out, HasSubstr("saved\n"));
}

TEST(Guard, AnInterruptShortensTheGraceOfWhatIsBehindAWrapper) {
  const ScratchFolder folder;
  // The wrapper goes at once; what is behind it is asked then.
  Program program(wrapped("trap '' INT; trap 'echo not yet' TERM; ", {"--shutdown-timeout", "1h"}),
                  folder);
  const auto pids = pidfds(program.read_until("ready"));
  ASSERT_EQ(pids.size(), 1U);
  ::kill(program.pid(), SIGTERM);
  program.read_until("not yet");
  ::kill(program.pid(), SIGINT);
  EXPECT_EQ(program.finish().code, 128 + SIGTERM);
  EXPECT_TRUE(ends_within(pids[0], milliseconds(0)));
}

TEST(Guard, WhatIsBehindAWrapperDiesWithTheLauncher) {
  for (const char* session : {"", "setsid "}) {
    const ScratchFolder folder;
    Program program({"run",
                     "-q",
                     "-n",
                     "2",
                     "sh",
                     "-c",
                     cat(session,
                         "sh -c 'trap \"\" TERM HUP; echo pid $$; echo ready$RANK; "
                         "while :; do sleep 0.05; done'; true")},
                    folder);
    wait_until_ready(program);
    const auto programs = pidfds(program.read_until("ready1"));
    ASSERT_EQ(programs.size(), 2U);
    ::kill(program.pid(), SIGKILL);
    for (const Fd& pid : programs) {
      EXPECT_TRUE(ends_within(pid, kSoon)) << session;
      ::syscall(
          SYS_pidfd_send_signal, pid.get(), SIGKILL, nullptr, 0);  // leave nothing when this fails
    }
    program.finish();
  }
}

// Rank 0 kills it while it starts the others.
TEST(Guard, WhatARankHasStartedDiesWithALauncherThatStillStarts) {
  for (int round = 0; round < 3; ++round) {
    const ScratchFolder folder;
    Program program({"run",
                     "-q",
                     "-n",
                     "32",
                     "sh",
                     "-c",
                     "[ $RANK = 0 ] || exec sleep 1000; "
                     "setsid sh -c 'echo $$ >part; mv part pid; exec sleep 1000' & until [ -e pid "
                     "]; do :; done; "
                     "kill -KILL $PPID; exec sleep 1000"},
                    folder);
    program.finish();
    const pid_t left = std::stoi(read_file(folder.path() + "/pid"));
    const Fd pid(static_cast<int>(::syscall(SYS_pidfd_open, left, 0)));
    EXPECT_TRUE(!pid.valid() || ends_within(pid, kSoon));
    if (pid.valid())
      ::syscall(SYS_pidfd_send_signal, pid.get(), SIGKILL, nullptr, 0);
  }
}

TEST(Guard, AStopSignalAtTheEndOfAnAttemptForbidsTheNext) {
  const ScratchFolder folder;
  // More than the pipe to us holds: the launcher is busy with the rest when the rank has ended.
  Program program(
      {"run",
       "-q",
       "-n",
       "1",
       "--max-restarts",
       "3",
       "sh",
       "-c",
       "head -c 300000 /dev/zero; echo attempt >> attempts; echo $$ > pid.part; mv pid.part pid; "
       "exit 9"},
      folder);
  // A reader that took nothing for 5 s would have the launcher go on.
  Deadline next_page(milliseconds(500));
  const auto wait = [&] {
    if (next_page.passed()) {
      program.read_a_page();
      next_page = Deadline(milliseconds(500));
    }
    ::sched_yield();
  };
  while (!std::filesystem::exists(folder.path() + "/pid"))
    wait();
  const int rank = std::stoi(read_file(folder.path() + "/pid"));
  while (::kill(rank, 0) == 0)
    wait();  // until it is no zombie either
  ::kill(program.pid(), SIGTERM);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 9);
  EXPECT_EQ(read_file(folder.path() + "/attempts"), "attempt\n");
  EXPECT_THAT(ran.err, HasSubstr("stopped by SIGTERM; not starting again"));
}

TEST(Guard, RanksDieWithTheLauncher) {
  const ScratchFolder folder;
  Program program(sleepers("trap '' TERM HUP; "), folder);
  wait_until_ready(program);
  const auto ranks = pidfds(program.read_until("ready1"));
  ASSERT_EQ(ranks.size(), 2U);
  ::kill(program.pid(), SIGKILL);
  for (const Fd& rank : ranks)
    EXPECT_TRUE(ends_within(rank, kSoon));
  program.finish();
}

TEST(Guard, GrandchildrenGoToo) {
  const ScratchFolder folder;
  for (const char* end : {"exit 0", "exit 1"}) {
    Program program({"run",
                     "-q",
                     "-n",
                     "2",
                     "sh",
                     "-c",
                     cat("setsid sleep 1000 & echo pid $!; (sleep 1000 & echo pid $!); ", end)},
                    folder);
    const Ran ran = program.finish();
    for (const Fd& pid : pidfds(ran.out))
      EXPECT_TRUE(ends_within(pid, milliseconds(0))) << ran.out;
  }
}

TEST(Guard, NamesTheCauseAmongDeathsThatFollowAtOnce) {
  const ScratchFolder folder;
  // Rank 0 and 1 exit with 1 the moment that rank 2 dies.
  const std::string script =
      "if [ $RANK = 2 ]; then exec 3> gate0 4> gate1; kill -KILL $$; fi; read x < gate$RANK; exit "
      "1";
  for (int round = 0; round < 5; ++round) {
    for (const char* gate : {"/gate0", "/gate1"}) {
      ::unlink((folder.path() + gate).c_str());
      ASSERT_EQ(::mkfifo((folder.path() + gate).c_str(), 0600), 0);
    }
    const Ran ran = muster({"run", "-q", "-n", "3", "sh", "-c", script}, folder);
    EXPECT_EQ(ran.code, 128 + SIGKILL);
    EXPECT_THAT(ran.err, HasSubstr("rank 2 failed first: killed by SIGKILL"));
  }
}

TEST(Guard, NohupIsHonoured) {
  const ScratchFolder folder;
  Program program = from_shell(
      "trap '' HUP; exec \"$0\" run -q -n 1 sh -c 'echo ready; until [ -e go ]; do sleep 0.02; "
      "done'",
      folder);
  program.read_until("ready");
  ::kill(program.pid(), SIGHUP);
  folder.write("go", "");
  EXPECT_EQ(program.finish().code, 0);
}

TEST(Guard, UserSignalsReachTheRanks) {
  const ScratchFolder folder;
  Program program(sleepers("trap 'echo usr$RANK; exit 0' USR1; "), folder);
  wait_until_ready(program);
  ::kill(program.pid(), SIGUSR1);
  const Ran ran = program.finish();
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("usr0"));
  EXPECT_THAT(ran.out, HasSubstr("usr1"));
}

}  // namespace
}  // namespace muster
