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
    const ssize_t n = ::pread(file_.get(), bytes, sizeof(bytes), static_cast<off_t>(text.size()));
    if (n < 0)
      return own_children();
    if (n == 0)
      break;
    text.append(bytes, static_cast<size_t>(n));
  }
  std::set<pid_t> pids;
  for (const std::string& word : split(text, ' ')) {
    if (const auto pid = parse_int(word))
      pids.insert(static_cast<pid_t>(*pid));
  }
  return pids;
}

void LeftoverSweep::ask(const std::set<pid_t>& left) {
  for (const pid_t pid : left) {
    if (asked_.insert(pid).second)
      ::kill(pid, SIGTERM);
  }
}

void LeftoverSweep::kill(const std::set<pid_t>& left) {
  for (const pid_t pid : left) {
    if (killed_.insert(pid).second)
      killed_words_.push_back(describe_process(pid));
    ::kill(pid, SIGKILL);
  }
}

}  // namespace muster
