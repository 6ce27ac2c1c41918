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

template <class Predicate>
bool comes_true(Predicate predicate) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!predicate()) {
    if (deadline.passed())
      return false;
    ::sched_yield();
  }
  return true;
}

// A process in the middle of exec, which spawn_child does not wait for the end of, has no
// environment to be found by.
Child sleeper(const std::string& value = "") {
  Child child = spawn_child(
      {.argv = {"sleep", "1000"},
       .environment = {
           {"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"SENTINEL_TEST", value}, {"LAST", "1"}}});
  EXPECT_TRUE(comes_true([&] { return !read_file(cat("/proc/", child.pid, "/environ")).empty(); }));
  return child;
}

size_t num_open_files(pid_t pid) {
  std::error_code ignored;
  size_t count = 0;
  for (std::filesystem::directory_iterator file(cat("/proc/", pid, "/fd"), ignored), end;
       !ignored && file != end;
       file.increment(ignored)) {
    ++count;
  }
  return count;
}

TEST(Sentinel, HoldsNothingOfOursAndEndsNobodyAtItsEnd) {
  const Child child = sleeper();
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
    if (in_group)
      sentinel->guard(child.pid);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(launcher, nullptr, 0);
  const bool ended = comes_true([&] { return process_status(child.pid).state == 'Z'; });
  ::kill(child.pid, SIGKILL);
  ::waitpid(child.pid, nullptr, 0);
  return ended;
}

TEST(Sentinel, EndsGroupsAndMarkedProcessesOfALauncherThatIsKilled) {
  EXPECT_TRUE(ends_with({}, sleeper(), true));
  // Marks of their own: the sentinel before may still be looking for more.
  EXPECT_TRUE(ends_with({"SENTINEL_TEST=first"}, sleeper("first"), false));
  EXPECT_TRUE(ends_with({"LAST=1", "SENTINEL_TEST=second"}, sleeper("second"), false));
}

TEST(Sentinel, LeavesOthersAlone) {
  const Child longer = sleeper("mine too");
  const Child shorter = sleeper("min");
  const Child other = sleeper("other");
  // Those with lower numbers are looked at first.
  EXPECT_TRUE(ends_with({"SENTINEL_TEST=mine", "LAST=1"}, sleeper("mine"), false));
  for (const Child* child : {&longer, &shorter, &other}) {
    EXPECT_EQ(::waitpid(child->pid, nullptr, WNOHANG), 0);
    ::kill(child->pid, SIGKILL);
    ::waitpid(child->pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace muster
