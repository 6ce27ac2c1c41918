// How it works: /proc keeps a list of each thread's children, and an open one can be read again and
// again from its beginning. A sweep remembers whom it has asked and killed, so that each process is
// asked once and described once, before it is gone.
#include "muster/supervise/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "muster/base/strings.h"
#include "muster/supervise/child_exit.h"
#include "muster/supervise/descendants.h"

namespace muster {

ChildList::ChildList()
    : file_(
          ::open(cat("/proc/self/task/", ::gettid(), "/children").c_str(), O_RDONLY | O_CLOEXEC)) {}

std::set<pid_t> ChildList::read() const {
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

void LeftoverSweep::ask(const std::set<pid_t>& left) {
  for (const pid_t pid : left) {
    if (asked_.insert(pid).second)
      ::kill(pid, SIGTERM);
  }
}

// SIGKILL is sent each time, as it may have come while the process was in the kernel.
void LeftoverSweep::kill(const std::set<pid_t>& left) {
  for (const pid_t pid : left) {
    if (killed_.insert(pid).second)
      descriptions_.push_back(describe_process(pid));
    ::kill(pid, SIGKILL);
  }
}

}  // namespace muster
