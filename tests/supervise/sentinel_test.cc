// The whole of its work is shown by tests/cli/guard_test.cc, with the real program being killed.
#include "muster/supervise/sentinel.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "muster/base/clock.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"
#include "muster/supervise/descendants.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using std::chrono::milliseconds;

ChildOptions sleeper(const std::string& value = "") {
  return {.argv = {"sleep", "1000"},
          .environment = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"SENTINEL_TEST", value}, {"LAST", "1"}}};
}

template <class Predicate>
bool comes_true(Predicate predicate) {
  const Deadline deadline(std::chrono::seconds(10));
  while (!predicate()) {
    if (deadline.passed()) return false;
    ::sched_yield();
  }
  return true;
}

size_t num_open_files(pid_t pid) {
  std::error_code ignored;
  size_t count = 0;
  for (std::filesystem::directory_iterator file(cat("/proc/", pid, "/fd"), ignored), end;
       !ignored && file != end; file.increment(ignored)) {
    ++count;
  }
  return count;
}

TEST(Sentinel, HoldsNothingOfOursAndEndsNobodyAtItsEnd) {
  const Child child = spawn_child(sleeper());
  pid_t pid = 0;
  {
    Sentinel sentinel({});
    pid = sentinel.pid();
    sentinel.guard(child.pid);
    EXPECT_TRUE(comes_true([&] { return num_open_files(pid) == 1; })) << "its pipe";
    EXPECT_EQ(process_status(pid).command, "muster-sentinel");
    EXPECT_EQ(::getsid(pid), pid);
    EXPECT_EQ(::getpgid(pid), pid);
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGINT);
    EXPECT_NE(process_status(pid).state, 'Z');
  }
  EXPECT_NE(::kill(pid, 0), 0);
  EXPECT_EQ(::waitpid(child.pid, nullptr, WNOHANG), 0);
  ::kill(child.pid, SIGKILL);
  ::waitpid(child.pid, nullptr, 0);
}

// Whether a process ends when a process with a sentinel ends without a word.
bool ends_with(const std::vector<std::string>& marks, const Child& child, bool in_group) {
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    auto* const sentinel = new Sentinel(marks);
    if (in_group) sentinel->guard(child.pid);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(launcher, nullptr, 0);
  const bool ended = comes_true([&] { return process_status(child.pid).state == 'Z'; });
  ::kill(child.pid, SIGKILL);
  ::waitpid(child.pid, nullptr, 0);
  return ended;
}

TEST(Sentinel, EndsGroupsAndMarkedProcessesOfALauncherThatIsKilled) {
  EXPECT_TRUE(ends_with({}, spawn_child(sleeper()), true));
  EXPECT_TRUE(ends_with({"SENTINEL_TEST=mine"}, spawn_child(sleeper("mine")), false));
  EXPECT_TRUE(ends_with({"LAST=1", "SENTINEL_TEST=mine"}, spawn_child(sleeper("mine")), false));
}

TEST(Sentinel, LeavesOthersAlone) {
  const Child longer = spawn_child(sleeper("mine too"));
  const Child shorter = spawn_child(sleeper("min"));
  const Child other = spawn_child(sleeper("other"));
  // Those with lower numbers are looked at first.
  EXPECT_TRUE(ends_with({"SENTINEL_TEST=mine", "LAST=1"}, spawn_child(sleeper("mine")), false));
  for (const Child* child : {&longer, &shorter, &other}) {
    EXPECT_EQ(::waitpid(child->pid, nullptr, WNOHANG), 0);
    ::kill(child->pid, SIGKILL);
    ::waitpid(child->pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace muster
