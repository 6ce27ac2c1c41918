// How it works: /proc keeps a list of each thread's children, and an open one can be read again and
// again from its beginning. A sweep remembers whom it has asked and killed, so that each process is
// asked once and described once, before it is gone.
#include "muster/supervise/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "muster/base/lookup.h"
#include "muster/supervise/child_exit.h"

namespace muster {

namespace {

// A shell tells of a signal by an exit code, and so do programs that save first.
bool is_end_of_sigterm(int status) {
  constexpr int kExitCode = 128 + SIGTERM;
  return (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) ||
         (WIFEXITED(status) && WEXITSTATUS(status) == kExitCode);
}

}  // namespace

ChildList::ChildList()
    : file_(
          ::open(cat("/proc/self/task/", ::gettid(), "/children").c_str(), O_RDONLY | O_CLOEXEC)) {}

Pids ChildList::read() const {
  if (!file_.valid() || ::getpid() != ::gettid())
    return own_children();
  std::string text;
  char bytes[4'096];  // the kernel gives no more at a time
  for (;;) {
    const ssize_t n = ::pread(file_.get(), bytes, sizeof(bytes), std::ssize(text));
    if (n < 0)
      return own_children();
    if (n == 0)
      return pids_in(text);
    text.append(bytes, n);
  }
}

LeftoverSweep::LeftoverSweep() : LeftoverSweep(describe_process) {}

LeftoverSweep::LeftoverSweep(std::function<std::string(pid_t)> describe)
    : describe_(std::move(describe)) {}

void LeftoverSweep::note_asked(pid_t pid) {
  if (!asked_.contains(pid))
    asked_.emplace(pid, describe_(pid));
}

void LeftoverSweep::ask(const Pids& left) {
  for (const pid_t pid : left) {
    if (asked_.contains(pid))
      continue;
    note_asked(pid);
    ::kill(pid, SIGTERM);
  }
}

void LeftoverSweep::note_end(pid_t pid, int status) {
  std::string* const asked = value_at(asked_, pid);
  if (asked != nullptr && !asked->empty() && is_end_of_sigterm(status))
    ended_.push_back(std::exchange(*asked, {}));
}

// SIGKILL is sent each time, as it may have come while the process was in the kernel.
void LeftoverSweep::kill(const Pids& left) {
  for (const pid_t pid : left) {
    if (killed_.insert(pid).second)
      descriptions_.push_back(describe_(pid));
    ::kill(pid, SIGKILL);
  }
}

}  // namespace muster
