// How it works: a child is looked at with waitid(WNOWAIT), which leaves its zombie there, and only
// whoever has ended its process group waits for it for good.
#include "muster/supervise/child_exit.h"

#include <sys/wait.h>

#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// The child has ended, so that waitid answers at once.
ChildExit exit_of(const Child& child, int id, int sent_signal) {
  siginfo_t info{};
  if (::waitid(P_PIDFD, child.pidfd.get(), &info, WEXITED | WNOWAIT) != 0)
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

Pids without_ended(Pids children, const std::function<void(pid_t pid, int status)>& on_end) {
  std::erase_if(children, [&](pid_t pid) {
    int status = 0;
    const bool has_ended = ::waitpid(pid, &status, WNOHANG) == pid;
    if (has_ended && on_end)
      on_end(pid, status);
    return has_ended;
  });
  return children;
}

std::string describe_process(pid_t pid) {
  const ProcessStatus status = process_status(pid);
  const char* const why =
      status.state == 'D' ? ": waiting in the kernel, no signal reaches it" : "";
  return cat("process ", pid, " (", status.command, ", state ", status.state, why, ")");
}

}  // namespace muster
