#include "muster/supervise/process_set.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

ChildOptions shell(const std::string& script) {
  return {.argv = {"sh", "-c", script}, .environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}}};
}

std::vector<int> ids(const WaitResult& result) {
  std::vector<int> list;
  for (const ChildExit& exit : result.exits)
    list.push_back(exit.id);
  return list;
}

// True when the process ends, or is gone: nobody else would end it.
bool ends_soon(pid_t pid) {
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd.valid())
    return true;
  pollfd poll = {.fd = fd.get(), .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 20'000) == 1;
}

// A named pipe: who opens it to read waits for who writes. Keeps children waiting without sleeping.
std::string make_gate(const ScratchFolder& scratch, const std::string& name) {
  EXPECT_EQ(::mkfifo((scratch.path() + "/" + name).c_str(), 0600), 0);
  return scratch.path() + "/" + name;
}

TEST(ProcessSet, TellsExitCodesAndSignals) {
  ProcessSet set;
  set.spawn(0, shell("exit 0"));
  set.spawn(1, shell("exit 7"));
  set.spawn(2, shell("kill -SEGV $$"));
  const WaitResult result = set.wait_all({.stop_on_failure = false});
  ASSERT_EQ(result.exits.size(), 3U);
  for (const ChildExit& exit : result.exits) {
    EXPECT_EQ(exit.exit_code, exit.id == 1 ? 7 : 0);
    EXPECT_EQ(exit.signal, exit.id == 2 ? SIGSEGV : 0);
    EXPECT_EQ(exit.sent_signal, 0);
  }
  EXPECT_TRUE(result.survivors.empty());
}

TEST(ProcessSet, TellsDeathsInTheirOrder) {
  const ScratchFolder scratch;
  // Each waits until the one before it is a zombie: dead, and not only about to be.
  const auto say = [&](const char* name) {
    return cat("echo $$ > ",
               scratch.path(),
               "/",
               name,
               ".part; mv ",
               scratch.path(),
               "/",
               name,
               ".part ",
               scratch.path(),
               "/",
               name);
  };
  const auto after = [&](const char* name) {
    return cat("until [ -e ",
               scratch.path(),
               "/",
               name,
               " ]; do :; done; until grep -q '^State:.Z' /proc/$(cat ",
               scratch.path(),
               "/",
               name,
               ")/status; do :; done; ");
  };
  ProcessSet set;
  set.spawn(0, shell(after("two")));
  set.spawn(1, shell(say("one")));
  set.spawn(2, shell(cat(after("one"), say("two"))));
  EXPECT_THAT(ids(set.wait_all({})), ElementsAre(1, 2, 0));
}

TEST(ProcessSet, FirstFailureEndsTheOthers) {
  ProcessSet set;
  set.spawn(0, shell("exec sleep 1000"));
  set.spawn(1, shell("exit 3"));
  const WaitResult result = set.wait_all({});
  ASSERT_THAT(ids(result), ElementsAre(1, 0));
  EXPECT_EQ(result.exits[0].sent_signal, 0);
  EXPECT_EQ(result.exits[1].signal, SIGTERM);
  EXPECT_EQ(result.exits[1].sent_signal, SIGTERM);
}

// Peers that die of the first one's death, at once, must not be taken for the cause. The last one
// waits for another's death, so that the cause is not the last either.
TEST(ProcessSet, NamesTheCauseNotItsConsequence) {
  const ScratchFolder scratch;
  int round = 0;
  for (const char* end :
       {"kill -KILL $$", "kill -SEGV $$", "kill -ABRT $$", "kill -PIPE $$", "exit 3"}) {
    for (int peers : {1, 7, 1, 7}) {
      const std::string gate = make_gate(scratch, cat("gate", round++));
      ProcessSet set;
      for (int id = 0; id < peers; ++id)
        set.spawn(id, shell(cat("exec 4< ", gate, "; read x <&4; exit 1")));
      set.spawn(peers, shell(cat("exec 3> ", gate, "; ", end)));
      const WaitResult result = set.wait_all({});
      EXPECT_EQ(result.exits.at(0).id, peers) << end << " with " << peers;
    }
  }
}

// One that is on its way out when the others are told to end: its first thread has ended, and the
// other does when the sleeper is gone, which is long after anybody waits for the cause.
TEST(ProcessSet, NamesACauseThatIsDeadWhenTheOthersWereTold) {
  const ScratchFolder scratch;
  const std::string leaving =
      cat("import ctypes, os, platform, signal, threading, time\n"
          "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
          "def end():\n"
          "    while os.path.exists('",
          scratch.path(),
          "/lives'): time.sleep(0.001)\n"
          "    os._exit(3)\n"
          "threading.Thread(target=end).start()\n"
          "open('",
          scratch.path(),
          "/leaves', 'w').close()\n"
          "ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)\n");
  scratch.write("lives", "");
  ProcessSet set;
  set.spawn(0, shell(cat("until [ -e ", scratch.path(), "/leaves ]; do :; done; exit 1")));
  set.spawn(1,
            {.argv = {"python3", "-c", leaving},
             .environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}}});
  set.spawn(
      2,
      shell(
          cat("trap 'rm ", scratch.path(), "/lives; exit 0' TERM; while :; do sleep 0.01; done")));
  const WaitResult result = set.wait_all({.account = [](const ChildExit& exit) {
    return exit.exit_code == 1 ? Account::lost_peer : Account::none;
  }});
  ASSERT_EQ(result.exits.size(), 3U);
  EXPECT_EQ(result.exits[0].id, 1);
  EXPECT_EQ(result.exits[0].exit_code, 3);
  EXPECT_EQ(result.exits[0].sent_signal, 0) << "it had ended by itself";
}

// Nor one whose death is noticed long before it is over: here it has much memory to give back.
TEST(ProcessSet, NamesTheCauseThatTakesItsTimeToEnd) {
  const ScratchFolder scratch;
  const std::string folder = cat("cd ", scratch.path(), "; ");
  ProcessSet set;
  set.spawn(0,
            shell(folder +
                  "until [ -e pid ]; do :; done; pid=$(cat pid); "
                  "until [ $(awk '/VmRSS/ {print $2}' /proc/$pid/status) -gt 100000 ]; do :; done; "
                  "kill -KILL $pid; while [ -e /proc/$pid/exe ]; do :; done; exit 1"));
  set.spawn(1,
            shell(folder +
                  "echo $$ > part; mv part pid; exec dd if=/dev/zero of=/dev/null bs=128M 2>&1"));
  const WaitResult result = set.wait_all({});
  ASSERT_EQ(result.exits.size(), 2U);
  EXPECT_EQ(result.exits[0].id, 1);
  EXPECT_EQ(result.exits[0].signal, SIGKILL);
}

// A failure that reads as another's consequence, where that one does not end: the rest is stopped
// after a while.
TEST(ProcessSet, AwaitsACauseNotForEver) {
  ProcessSet set;
  set.spawn(0, shell("exit 1"));
  set.spawn(1, shell("exec sleep 1000"));
  std::set<int> asked;
  const WaitResult result = set.wait_all({.account = [&](const ChildExit& exit) {
    asked.insert(exit.id);
    return Account::lost_peer;
  }});
  EXPECT_THAT(ids(result), ElementsAre(0, 1));
  EXPECT_THAT(asked, ElementsAre(0));
  EXPECT_EQ(result.exits[1].sent_signal, SIGTERM);
}

TEST(ProcessSet, KillsWhoIgnoresTheGrace) {
  const ScratchFolder scratch;
  const std::string gate = make_gate(scratch, "gate");
  ProcessSet set;
  set.spawn(0, shell(cat("trap '' TERM; exec 3> ", gate, "; sleep 1000; sleep 1000")));
  set.spawn(1, shell(cat("read x < ", gate, " & wait; exit 1")));
  set.spawn(2, shell(cat(": < ", gate, "; exit 1")));
  const auto start = Clock::now();
  const WaitResult result = set.wait_all({.stop_on_failure = true, .grace = milliseconds(200)});
  EXPECT_LT(seconds_since(start), 20)
      << "the grace is 200 ms, and 30 s unless it is said; the rest is for a busy machine";
  const auto stubborn = std::find_if(
      result.exits.begin(), result.exits.end(), [](const ChildExit& exit) { return exit.id == 0; });
  ASSERT_NE(stubborn, result.exits.end());
  EXPECT_EQ(stubborn->signal, SIGKILL);
  EXPECT_EQ(stubborn->sent_signal, SIGKILL);
}

TEST(ProcessSet, LeavesNoDescendant) {
  const ScratchFolder scratch;
  const std::string pids = scratch.path() + "/pids";
  ProcessSet set;
  // In the group; out of it in a session of its own; and twice removed, with its parents gone.
  set.spawn(0,
            shell(cat("sleep 1000 & echo $! >> ",
                      pids,
                      "; setsid sh -c 'echo $$ >> ",
                      pids,
                      "; exec sleep 1000' & (setsid sh -c 'sleep 1000 & echo $! >> ",
                      pids,
                      "' &) ; while [ $(wc -l < ",
                      pids,
                      ") -lt 3 ]; do :; done; exit 0")));
  const WaitResult result = set.wait_all({});
  EXPECT_TRUE(result.survivors.empty());
  EXPECT_TRUE(result.killed.empty()) << "SIGTERM was enough";
  EXPECT_EQ(result.ended.size(), 3U) << testing::PrintToString(result.ended);
  const auto lines = split(trim(read_file(pids)), '\n');
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& pid : lines)
    EXPECT_TRUE(ends_soon(std::stoi(pid))) << pid;
}

// A helper that ends of its parent's end, as those of Python's multiprocessing do, was not ended.
TEST(ProcessSet, WhatEndsByItselfWasNotEnded) {
  const ScratchFolder scratch;
  const std::string deaf = scratch.path() + "/deaf";
  ProcessSet set;
  set.spawn(
      0,
      shell(cat(
          "(trap '' TERM; : > ", deaf, "; exec sleep 0.1) & until [ -e ", deaf, " ]; do :; done")));
  const WaitResult result = set.wait_all({});
  EXPECT_TRUE(result.ended.empty()) << testing::PrintToString(result.ended);
  EXPECT_TRUE(result.killed.empty());
}

TEST(ProcessSet, WhatAStopEndsIsNotTold) {
  const ScratchFolder scratch;
  const std::string gate = make_gate(scratch, "gate");
  ProcessSet set;
  set.spawn(0, shell(cat("(exec sleep 1000) & echo > ", gate, "; wait")));
  set.spawn(1, shell(cat("read x < ", gate, "; exit 3")));
  EXPECT_TRUE(set.wait_all({}).ended.empty());
}

TEST(ProcessSet, LeavesOthersChildrenAlone) {
  const pid_t bystander = ::fork();
  if (bystander == 0) {
    ::execl("/bin/sleep", "sleep", "1000", nullptr);
    ::_exit(127);
  }
  {
    ProcessSet set;
    set.spawn(0, shell("exit 1"));
    set.wait_all({});
  }
  EXPECT_EQ(::waitpid(bystander, nullptr, WNOHANG), 0);
  ::kill(bystander, SIGKILL);
  ::waitpid(bystander, nullptr, 0);
}

TEST(ProcessSet, PassesTheStopSignalOn) {
  ProcessSet set;
  set.spawn(0, shell("trap 'exit 5' INT; kill -INT $PPID; while :; do sleep 0.01; done"));
  const WaitResult result = set.wait_all({});
  EXPECT_EQ(result.stopped_by, SIGINT);
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_EQ(result.exits[0].exit_code, 5);
  EXPECT_EQ(result.exits[0].sent_signal, SIGINT);
}

// A program that starts itself may have threads before it becomes a launcher.
TEST(ProcessSet, HearsSignalsWhateverThreadTheyComeTo) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  // In poll: in read the thread sanitizer keeps a signal back until the call returns.
  std::thread thread([&] {
    pollfd end = {.fd = read_end.get(), .events = POLLIN, .revents = 0};
    while (::poll(&end, 1, -1) != 1) {
    }
  });
  {
    ProcessSet set;
    set.spawn(0, shell("trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.01; done"));
    const WaitResult result = set.wait_all({});
    EXPECT_EQ(result.stopped_by, SIGTERM);
    ASSERT_EQ(result.exits.size(), 1U);
    EXPECT_EQ(result.exits[0].exit_code, 5);
    ::pthread_kill(thread.native_handle(), SIGINT);
    while (set.stop_requested() == 0)
      ::sched_yield();
    EXPECT_EQ(set.stop_requested(), SIGINT);
  }
  write_end.reset();
  thread.join();
}

TEST(ProcessSet, GivesSignalsBackAtItsEnd) {
  const auto handler = [](int) {
  };
  const auto before = ::signal(SIGTERM, handler);
  {
    const ProcessSet set;
  }
  EXPECT_EQ(::signal(SIGTERM, before), static_cast<void (*)(int)>(handler));
}

TEST(ProcessSet, RemembersAStopSignalThatCameBeforeTheProcesses) {
  ProcessSet set;
  EXPECT_EQ(set.stop_requested(), 0);
  ::raise(SIGTERM);
  EXPECT_EQ(set.stop_requested(), SIGTERM);
  set.spawn(0, shell("exec sleep 1000"));
  const WaitResult result = set.wait_all({});
  EXPECT_EQ(result.stopped_by, SIGTERM);
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_EQ(result.exits[0].sent_signal, SIGTERM);
  EXPECT_EQ(set.stop_requested(), 0);
}

TEST(ProcessSet, PassesUserSignalsOnWithoutStopping) {
  ProcessSet set;
  set.spawn(0, shell("trap 'exit 6' USR1; kill -USR1 $PPID; while :; do sleep 0.01; done"));
  const WaitResult result = set.wait_all({});
  EXPECT_EQ(result.stopped_by, 0);
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_EQ(result.exits[0].exit_code, 6);
}

// It would end a process that does not catch it yet.
TEST(ProcessSet, AUserSignalWaitsForAProcessThatCatchesIt) {
  ProcessSet set;
  set.tell_all(SIGUSR1);
  set.spawn(0, shell("sleep 0.3; trap 'exit 6' USR1; while :; do sleep 0.01; done"));
  set.tell_all(SIGUSR2);
  set.spawn(1, shell("sleep 0.3; trap 'exit 7' USR2; while :; do sleep 0.01; done"));
  const WaitResult result = set.wait_all({.stop_on_failure = false});
  ASSERT_EQ(result.exits.size(), 2U);
  for (const ChildExit& exit : result.exits)
    EXPECT_EQ(exit.exit_code, exit.id == 0 ? 6 : 7);
}

// Runs a Python program, which is sent SIGUSR1, and returns how it ended.
ChildExit end_of_program_told(const std::string& program) {
  ProcessSet set;
  set.spawn(0, shell(cat("exec python3 -S -c '", program, "'")));
  set.tell_all(SIGUSR1);
  return set.wait_all({}).exits.at(0);
}

// Programs block all signals for a moment around each start of a thread or a process.
TEST(ProcessSet, AUserSignalDoesNotEndAProcessThatBlocksItForAWhile) {
  const ChildExit exit = end_of_program_told(R"(
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); time.sleep(3.5)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1}))");
  EXPECT_EQ(exit.signal, 0);
}

TEST(ProcessSet, AUserSignalReachesAThreadThatTakesSignalsInTurn) {
  const ChildExit exit = end_of_program_told(R"(
import os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
threading.Thread(target=lambda: signal.sigwait({signal.SIGUSR1}) and os._exit(8)).start()
threading.Event().wait())");
  EXPECT_EQ(exit.exit_code, 8);
}

// Who comes later was not asked: a save that ends the rank would end the new one hours later.
TEST(ProcessSet, AUserSignalIsNotForAProcessThatIsSpawnedLater) {
  ProcessSet set;
  set.spawn(0, shell("kill -USR1 $PPID; sleep 0.3; exit 3"));
  bool has_spawned = false;
  const WaitResult result = set.wait_all({
      .is_made_good =
          [&](const std::vector<ChildExit>& /*failures*/) {
            set.spawn(1, shell("trap 'exit 6' USR1; sleep 1 & wait; exit 0"));
            return has_spawned = true;
          },
      .awaits_others = [&] { return !has_spawned; },
  });
  const auto later = std::ranges::find(result.exits, 1, &ChildExit::id);
  ASSERT_NE(later, result.exits.end());
  EXPECT_EQ(later->exit_code, 0);
}

TEST(ProcessSet, SecondInterruptKillsAtOnce) {
  ProcessSet set;
  set.spawn(0, shell("trap 'kill -INT $PPID' INT; kill -INT $PPID; while :; do sleep 0.01; done"));
  const WaitResult result = set.wait_all({.grace = std::chrono::hours(1)});
  ASSERT_EQ(result.exits.size(), 1U);
  EXPECT_EQ(result.exits[0].signal, SIGKILL);
}

TEST(ProcessSet, KillAllEndsEverything) {
  ProcessSet set;
  for (int id = 0; id < 5; ++id)
    set.spawn(id, shell("trap '' TERM; sleep 1000"));
  EXPECT_EQ(set.kill_all().exits.size(), 5U);
}

TEST(ProcessSet, CanBeUsedAgain) {
  ProcessSet set;
  for (int round = 0; round < 3; ++round) {
    set.spawn(round, shell(cat("exit ", round)));
    const WaitResult result = set.wait_all({});
    ASSERT_THAT(ids(result), ElementsAre(round));
    EXPECT_EQ(result.exits[0].exit_code, round);
  }
}

}  // namespace
}  // namespace muster
