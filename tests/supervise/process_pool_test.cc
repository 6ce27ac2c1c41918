#include "muster/supervise/process_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "muster/base/strings.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;

// Two of these tests at a time must not end each other's processes.
std::string own_mark() {
  return cat("pool", ::getpid());
}

ChildOptions pool_shell(const std::string& name, const std::string& script) {
  return {.argv = {"/bin/sh", "-c", script},
          .environment = {{"PATH", "/usr/bin:/bin"}, {"MARK", own_mark()}, {"NAME", name}},
          .inherit_fds = {}};
}

ProcessPoolOptions marked() {
  return {.mark = cat("MARK=", own_mark()),
          .child_variable = "NAME",
          .ask_leftovers = milliseconds(200)};
}

PoolExit wait_for_one(ProcessPool& pool) {
  for (;;) {
    auto exits = pool.wait(std::nullopt);
    if (!exits.empty())
      return exits.at(0);
  }
}

pid_t pid_in(const std::string& path) {
  for (;;) {
    std::ifstream file(path);
    std::string line;
    if (std::getline(file, line) && !file.eof())
      return static_cast<pid_t>(parse_int(line).value_or(-1));
  }
}

TEST(ProcessPool, TellsEachEndByItself) {
  ProcessPool pool(marked());
  std::map<int, PoolExit> ends;
  for (int i = 0; i < 20; ++i)
    pool.spawn(i, cat(i), pool_shell(cat(i), cat("exit ", i)));
  while (pool.size() > 0) {
    for (PoolExit& end : pool.wait(std::nullopt))
      ends[end.exit.id] = end;
  }
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(ends[i].exit.exit_code, i);
  pool.spawn(7, "again", pool_shell("again", "kill -9 $$"));
  EXPECT_EQ(wait_for_one(pool).exit.signal, SIGKILL);
}

TEST(ProcessPool, WhatAChildLeftEndsWithIt) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(1, "other", pool_shell("other", "sleep 1000"));
  // One in its group, one in a session of its own that ignores SIGTERM.
  pool.spawn(2,
             "leaves",
             pool_shell("leaves",
                        cat("sleep 1000 & setsid sh -c \"trap '' TERM; echo \\$\\$ >",
                            folder.path(),
                            "/p; while :; do sleep 0.05; done\" & while [ ! -s ",
                            folder.path(),
                            "/p ]; do sleep 0.01; done")));
  const PoolExit end = wait_for_one(pool);
  EXPECT_EQ(end.exit.id, 2);
  EXPECT_FALSE(end.killed.empty());
  EXPECT_EQ(::kill(pid_in(folder.path() + "/p"), 0), -1);
  EXPECT_EQ(pool.size(), 1U) << "the other is let be";
}

// A session of its own and nothing of its parent's environment, as daemons have that clean up after
// themselves.
std::string leaves_a_daemon(const std::string& path) {
  return cat("(env -i setsid sh -c 'echo $$ >",
             path,
             "; exec sleep 1000' &); while [ ! -s ",
             path,
             " ]; do sleep 0.01; done");
}

TEST(ProcessPool, WhatSigtermWasEnoughForIsTold) {
  const ScratchFolder folder;
  const std::string deaf = folder.path() + "/deaf";
  ProcessPool pool(marked());
  pool.spawn(1, "leaves", pool_shell("leaves", leaves_a_daemon(folder.path() + "/p")));
  const PoolExit end = wait_for_one(pool);
  EXPECT_THAT(end.ended,
              testing::ElementsAre(
                  testing::HasSubstr(cat("process ", pid_in(folder.path() + "/p"), " ("))));
  EXPECT_THAT(end.killed, testing::IsEmpty());
  // It ends by itself, as helpers do whose parent has ended.
  pool.spawn(2,
             "helps",
             pool_shell("helps",
                        cat("(trap '' TERM; : >",
                            deaf,
                            "; exec sleep 0.1) & until [ -e ",
                            deaf,
                            " ]; do :; done")));
  EXPECT_THAT(wait_for_one(pool).ended, testing::IsEmpty());
}

TEST(ProcessPool, WhatTheEndOfAChildThatWasAskedToEndsIsNotTold) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(
      1, "wraps", pool_shell("wraps", leaves_a_daemon(folder.path() + "/p") + "; sleep 1000"));
  pid_in(folder.path() + "/p");
  pool.end(1, milliseconds(60'000));
  const PoolExit end = wait_for_one(pool);
  EXPECT_THAT(end.ended, testing::IsEmpty());
  EXPECT_THAT(end.killed, testing::IsEmpty());
}

TEST(ProcessPool, WhatShowsNothingOfItsParentEndsWithTheOnlyOneThatItCanBeOf) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(1, "leaves", pool_shell("leaves", leaves_a_daemon(folder.path() + "/p")));
  const PoolExit end = wait_for_one(pool);
  EXPECT_THAT(end.unclear, testing::IsEmpty());
  EXPECT_EQ(::kill(pid_in(folder.path() + "/p"), 0), -1);
}

TEST(ProcessPool, WhatMayBeAnothersIsToldAndEndsWithThat) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(1, "other", pool_shell("other", "sleep 1000"));
  pool.spawn(2, "leaves", pool_shell("leaves", leaves_a_daemon(folder.path() + "/p")));
  const PoolExit end = wait_for_one(pool);
  const pid_t daemon = pid_in(folder.path() + "/p");
  EXPECT_EQ(end.exit.id, 2);
  ASSERT_THAT(end.unclear, testing::SizeIs(1));
  EXPECT_THAT(end.unclear[0], testing::HasSubstr(cat("process ", daemon)));
  ASSERT_THAT(end.alive, testing::SizeIs(1));
  EXPECT_TRUE(ProcessPool::is_alive(end.alive[0]));
  pool.end(1, milliseconds(10'000));
  EXPECT_EQ(wait_for_one(pool).exit.id, 1);
  EXPECT_FALSE(ProcessPool::is_alive(end.alive[0]));
  EXPECT_EQ(::kill(daemon, 0), -1);
}

TEST(ProcessPool, WhatWritesToAChildsOutputIsThatChilds) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(1, "other", pool_shell("other", "sleep 1000"));
  const Fd log(::open((folder.path() + "/log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  ChildOptions leaves = pool_shell("leaves", leaves_a_daemon(folder.path() + "/p"));
  leaves.stdout_fd = log.get();
  pool.spawn(2, "leaves", std::move(leaves));
  EXPECT_THAT(wait_for_one(pool).unclear, testing::IsEmpty());
  EXPECT_EQ(::kill(pid_in(folder.path() + "/p"), 0), -1);
}

TEST(ProcessPool, WhatIsOlderThanAChildIsNotThatChilds) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(
      1, "first", pool_shell("first", leaves_a_daemon(folder.path() + "/p") + "; exec sleep 1000"));
  const pid_t daemon = pid_in(folder.path() + "/p");
  const uint64_t began = process_start_ticks(daemon);
  // In the kernel's ticks, which are long, several begin at the same time.
  int id = 2;
  while (process_start_ticks(pool.spawn(id, "later", pool_shell("later", "exit 0"))) == began) {
    wait_for_one(pool);
    ++id;
  }
  EXPECT_THAT(wait_for_one(pool).unclear, testing::IsEmpty());
  EXPECT_EQ(::kill(daemon, 0), 0);
}

TEST(ProcessPool, EndsOneAndInsistsAfterTheGrace) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  pool.spawn(
      1,
      "deaf",
      pool_shell(
          "deaf",
          cat("trap '' TERM; echo $$ >", folder.path(), "/p; while :; do sleep 0.05; done")));
  pool.spawn(
      2,
      "polite",
      pool_shell(
          "polite",
          cat("trap 'exit 5' TERM; echo $$ >", folder.path(), "/q; while :; do sleep 0.05; done")));
  pid_in(folder.path() + "/p");
  pid_in(folder.path() + "/q");
  pool.end(1, milliseconds(50));
  pool.end(2, milliseconds(60'000));
  std::map<int, PoolExit> ends;
  while (pool.size() > 0) {
    for (PoolExit& end : pool.wait(std::nullopt))
      ends[end.exit.id] = end;
  }
  EXPECT_EQ(ends[1].exit.signal, SIGKILL);
  EXPECT_EQ(ends[1].exit.sent_signal, SIGKILL);
  EXPECT_EQ(ends[2].exit.exit_code, 5);
  EXPECT_EQ(ends[2].exit.sent_signal, SIGTERM);
}

TEST(ProcessPool, NothingIsLeftWhenItIsDestroyed) {
  const ScratchFolder folder;
  {
    ProcessPool pool(marked());
    pool.spawn(
        1,
        "a",
        pool_shell(
            "a",
            cat("env -i setsid sh -c 'echo $$ >", folder.path(), "/p; sleep 1000' & sleep 1000")));
    pid_in(folder.path() + "/p");
  }
  EXPECT_EQ(::kill(pid_in(folder.path() + "/p"), 0), -1);
}

TEST(ProcessPool, AChildThatIsAnothersAffairIsLetBe) {
  pid_t foreign = -1;
  Child other;
  {
    auto options = marked();
    options.is_foreign = [&](pid_t pid) {
      return pid == foreign;
    };
    ProcessPool pool(std::move(options));
    other = spawn_child(pool_shell("a", "sleep 1000"));  // with a child's name and mark
    foreign = other.pid;
    pool.spawn(1, "a", pool_shell("a", "exit 3"));
    EXPECT_TRUE(wait_for_one(pool).killed.empty());
  }
  EXPECT_EQ(::waitpid(other.pid, nullptr, WNOHANG), 0) << "it runs";
  ::kill(-other.pid, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(other.pid, &status, 0), other.pid) << "nobody else has waited for it";
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

// The pool's own process is killed: its children, and what these had started, go with it.
TEST(ProcessPool, NothingIsLeftWhenItIsKilled) {
  const ScratchFolder folder;
  const pid_t guard = ::fork();
  if (guard == 0) {
    ProcessPool pool(marked());
    for (int i = 0; i < 3;
         ++i) {  // the first two go before, so that their groups are forgotten again
      pool.spawn(i,
                 cat(i),
                 pool_shell(cat(i),
                            i < 2 ? "exit 0"
                                  : cat("setsid sh -c 'echo $$ >",
                                        folder.path(),
                                        "/p; sleep 1000' & sleep 1000")));
      if (i < 2)
        wait_for_one(pool);
    }
    for (;;)
      pool.wait(std::nullopt);
  }
  const pid_t left = pid_in(folder.path() + "/p");
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, left, 0)));
  ::kill(guard, SIGKILL);
  ::waitpid(guard, nullptr, 0);
  if (!pidfd.valid())
    return;
  EventLoop loop;
  bool gone = false;
  loop.watch_readable(pidfd.get(), [&] { gone = true; });
  loop.run_once(Clock::now() + milliseconds(20'000));
  EXPECT_TRUE(gone);
}

TEST(ProcessPool, StopSignalsAreItsOwnersAffair) {
  ProcessPool pool(marked());
  EXPECT_FALSE(pool.take_signal());
  ::kill(::getpid(), SIGINT);
  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(pool.take_signal());
  EXPECT_TRUE(pool.take_signal());
  EXPECT_FALSE(pool.take_signal());
}

// A request ends no process that does not know of it.
TEST(ProcessPool, AUserSignalIsForProcessesThatCatchIt) {
  const ScratchFolder folder;
  ProcessPool pool(marked());
  const std::string up = folder.path() + "/up";
  pool.spawn(0,
             "catches",
             pool_shell("catches",
                        cat("trap 'exit 6' USR1; touch ", up, "; while :; do sleep 0.01; done")));
  pool.spawn(
      1,
      "other",
      pool_shell("other",
                 cat("until [ -e ", up, " ]; do sleep 0.01; done; kill -USR1 $PPID; sleep 0.3")));
  std::map<int, PoolExit> ends;
  while (ends.size() < 2) {
    const PoolExit end = wait_for_one(pool);
    ends.insert_or_assign(end.exit.id, end);
  }
  EXPECT_EQ(ends.at(0).exit.exit_code, 6);
  EXPECT_EQ(ends.at(1).exit.exit_code, 0);
}

// As ranks do: a task takes its time to start.
TEST(ProcessPool, AUserSignalWaitsForAProcessThatCatchesIt) {
  ProcessPool pool(marked());
  const std::string loop = "; trap 'exit 6' USR1; sleep 1 & wait; exit 0";
  pool.spawn(0, "starting", pool_shell("starting", cat("sleep 0.3", loop)));
  pool.signal_children(SIGUSR1);
  pool.spawn(1, "later", pool_shell("later", cat("true", loop)));
  std::map<int, PoolExit> ends;
  while (ends.size() < 2) {
    const PoolExit end = wait_for_one(pool);
    ends.insert_or_assign(end.exit.id, end);
  }
  EXPECT_EQ(ends.at(0).exit.exit_code, 6);
  EXPECT_EQ(ends.at(1).exit.exit_code, 0) << "which was not there";
}

}  // namespace
}  // namespace muster
