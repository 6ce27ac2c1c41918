#include "muster/supervise/child_exit.h"

#include <sys/wait.h>

#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/supervise/descendants.h"

namespace muster {

ChildExit exit_of(const Child& child, int id, int sent_signal) {
  siginfo_t info = {};
  if (::waitid(P_PIDFD, static_cast<id_t>(child.pidfd.get()), &info, WEXITED | WNOWAIT) != 0)
    fail_errno("waitid", errno);
  ChildExit exit{.id = id, .pid = child.pid, .sent_signal = sent_signal, .at = Clock::now()};
  if (info.si_code == CLD_EXITED) {
    exit.exit_code = info.si_status;
  } else {
    exit.signal = info.si_status;
    exit.core_dumped = info.si_code == CLD_DUMPED;
  }
  return exit;
}

std::set<pid_t> without_ended(std::set<pid_t> children) {
  for (auto pid = children.begin(); pid != children.end();) {
    pid = ::waitpid(*pid, nullptr, WNOHANG) == *pid ? children.erase(pid) : std::next(pid);
  }
  return children;
}

std::string describe_process(pid_t pid) {
  const ProcessStatus status = process_status(pid);
  return cat("process ",
             pid,
             " (",
             status.command,
             ", state ",
             status.state,
             status.state == 'D' ? ": waiting in the kernel, no signal reaches it)" : ")");
}

}  // namespace muster
