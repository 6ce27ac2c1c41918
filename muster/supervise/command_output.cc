// How it works: a shell runs the command, and its end of the pipe and its own end are waited for
// with one deadline, and with looks at whether this process was asked to stop. What a grandchild
// writes after that is nobody's answer. A sentinel ends the command's group where this process is
// ended meanwhile, by whatever signal.
#include "muster/supervise/command_output.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/fd.h"
#include "muster/base/poll_one.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/supervise/child.h"
#include "muster/supervise/sentinel.h"
#include "muster/supervise/signal_pipe.h"

namespace muster {

namespace {

constexpr size_t kMaxAnswer = size_t{1} << 20;  // bytes; no list is longer
constexpr int kLookEveryMs = 100;               // for a signal that came to another thread

thread_local Condition asked_elsewhere;

bool is_asked_to_stop() {
  return caught_stop_signal() != 0 || (asked_elsewhere && asked_elsewhere());
}

// Blocking: until there is something to read, the deadline, or a stop signal. False: there is
// nothing to read.
bool wait_readable(int fd, const Deadline& deadline) {
  while (!is_asked_to_stop()) {
    if (poll_one(fd, POLLIN, std::min(deadline.left_for_poll(), kLookEveryMs)) > 0)
      return true;
    if (deadline.passed())
      return false;
  }
  return false;
}

struct Answer {
  std::string text;
  bool has_ended = false;  // the child
};

// The child's output until it has ended, has taken too long, or has said too much.
Answer answer_in_time(const Child& child, const Fd& answers, const Deadline& deadline) {
  Answer answer;
  char buffer[4096];
  while (!deadline.passed() && answer.text.size() <= kMaxAnswer &&
         wait_readable(answers.get(), deadline)) {
    const ssize_t n = ::read(answers.get(), buffer, sizeof(buffer));
    if (n > 0)
      answer.text.append(buffer, n);
    const bool was_interrupted = n < 0 && errno == EINTR;
    if (n > 0 || was_interrupted)
      continue;
    answer.has_ended = wait_readable(child.pidfd.get(), deadline);
    break;
  }
  return answer;
}

// Throws: AskedToStop.
void check_not_stopped(const std::string& command, const std::string& flag) {
  if (!is_asked_to_stop())
    return;
  const int signal = caught_stop_signal();
  throw AskedToStop(ErrorCode::unavailable,
                    cat(flag,
                        ": '",
                        printable(command),
                        "' was not waited for, as ",
                        signal != 0 ? signal_name(signal) : "a stop",
                        " came; start the job again"));
}

// What a child was killed for.
Error refusal_of(const Answer& answer,
                 const std::string& command,
                 const std::string& flag,
                 milliseconds patience) {
  const auto start = cat(flag, ": expected '", printable(command), "' to ");
  const std::string next = "; correct the command";
  if (answer.text.size() > kMaxAnswer)
    return {ErrorCode::io, cat(start, "print at most 1 MiB, got more", next)};
  return {ErrorCode::timeout,
          cat(start, "end within ", format_duration(patience), ", got no end", next)};
}

// No signal that can wait comes between the child's start and its guard.
Child spawn_guarded(const ChildOptions& options, Sentinel& sentinel) {
  const BlockedSignals blocked;
  Child child = spawn_child(options);
  sentinel.guard(child.pid);
  return child;
}

// Blocking: until the process has ended. Returns waitpid's status.
int wait_for_end(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

AlsoStopped::AlsoStopped(Condition is_asked) {
  asked_elsewhere = std::move(is_asked);
}

AlsoStopped::~AlsoStopped() {
  asked_elsewhere = nullptr;
}

// The command is killed with its whole process group if it does not end in time, or prints too
// much.
std::string output_of_command(const std::string& command,
                              const std::string& flag,
                              Environment variables,
                              milliseconds patience,
                              int stdin_fd) {
  check_not_stopped(command, flag);
  variables.merge(own_environment());
  Pipe pipe = open_pipe();
  Sentinel sentinel({});
  const Child child = spawn_guarded({.argv = {"sh", "-c", command},
                                     .environment = std::move(variables),
                                     .stdin_fd = stdin_fd,
                                     .stdout_fd = pipe.write_end.get()},
                                    sentinel);
  pipe.write_end.reset();
  const Answer answer = answer_in_time(child, pipe.read_end, Deadline(patience));
  if (!answer.has_ended)
    ::kill(-child.pid, SIGKILL);
  sentinel.forget_groups();
  const int status = wait_for_end(child.pid);
  if (!answer.has_ended)
    check_not_stopped(command, flag);
  if (!answer.has_ended)
    throw refusal_of(answer, command, flag, patience);
  if (status != 0) {
    const std::string end =
        WIFEXITED(status) ? cat("exit code ", WEXITSTATUS(status)) : signal_name(WTERMSIG(status));
    throw Error(ErrorCode::io, flag, ": expected '", printable(command), "' to succeed, got ", end);
  }
  return answer.text;
}

}  // namespace muster
