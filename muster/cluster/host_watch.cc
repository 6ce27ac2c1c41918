#include "muster/cluster/host_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "muster/base/clock.h"
#include "muster/base/log.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// Every answer ends with a line of its own: this, and the command's exit code.
constexpr const char* kEnd = "\n# muster: end of the list, exit code ";
constexpr const char* kAskAgainAndAgain =
    "while :; do sleep 2; sh -c \"$1\"; printf '\\n# muster: end of the list, exit code %d\\n' $?; "
    "done";
constexpr size_t kMaxAnswer = size_t{1} << 20;

// False when the patience ends first.
bool wait_readable(int fd, const Deadline& deadline) {
  struct pollfd poll = {.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready =
        ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(deadline.left().count(), 1000)));
    if (ready > 0)
      return true;
    if (deadline.passed())
      return false;
  }
}

// Its output until it has ended; nothing when it takes longer.
std::optional<std::string> answer_in_time(const Child& child,
                                          const Fd& answers,
                                          const Deadline& deadline) {
  std::string answer;
  char buffer[4096];
  while (wait_readable(answers.get(), deadline)) {
    const ssize_t n = ::read(answers.get(), buffer, sizeof(buffer));
    if (n > 0 && answer.size() < kMaxAnswer)
      answer.append(buffer, static_cast<size_t>(n));
    if (n > 0 || (n < 0 && errno == EINTR))
      continue;
    return wait_readable(child.pidfd.get(), deadline) ? std::optional(answer) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::vector<HostSpec> discover_hosts(const std::string& command,
                                     std::chrono::milliseconds patience) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail_errno("cannot make a pipe", errno);
  const Fd answers(ends[0]);
  Fd child_end(ends[1]);
  const Child child = spawn_child({.argv = {"sh", "-c", command},
                                   .environment = own_environment(),
                                   .stdout_fd = child_end.get()});
  child_end = Fd();
  const auto answer = answer_in_time(child, answers, Deadline(patience));
  if (!answer)
    ::kill(-child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!answer) {
    throw Error(ErrorCode::timeout,
                cat("--host-discovery: expected '",
                    printable(command),
                    "' to end within ",
                    format_duration(patience),
                    ", got no end; correct the command"));
  }
  if (status != 0) {
    throw Error(
        ErrorCode::io,
        cat("--host-discovery: expected '",
            printable(command),
            "' to succeed, got ",
            WIFEXITED(status) ? cat("exit code ", WEXITSTATUS(status)) : std::string("a signal")));
  }
  return parse_hostfile(*answer, cat("what '", command, "' printed"));
}

HostWatch::HostWatch(ProcessSet& processes, int id, const std::string& command, OnHosts on_hosts)
    : processes_(processes), id_(id), command_(command), on_hosts_(std::move(on_hosts)) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail_errno("cannot make a pipe", errno);
  answers_ = Fd(ends[0]);
  const Fd child_end(ends[1]);
  ::fcntl(answers_.get(), F_SETFL, O_NONBLOCK);
  processes_.spawn(id,
                   {.argv = {"sh", "-c", kAskAgainAndAgain, "sh", command},
                    .environment = own_environment(),
                    .stdout_fd = child_end.get()});
  watch_ = processes_.loop().watch_readable(answers_.get(), [this] { read_some(); });
}

void HostWatch::stop() {
  if (watch_ == 0)
    return;
  processes_.loop().cancel(std::exchange(watch_, 0));
  if (const pid_t pid = processes_.pid_of(id_); pid > 0)
    ::kill(-pid, SIGKILL);
}

void HostWatch::read_some() {
  char buffer[4096];
  const ssize_t n = ::read(answers_.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (n <= 0) {
    log(LogLevel::warn,
        "--host-discovery: the shell that runs the command has ended; no new hosts will be found");
    return stop();
  }
  read_.append(buffer, static_cast<size_t>(n));
  for (size_t end = 0; (end = read_.find(kEnd)) != std::string::npos;) {
    const size_t line_end = read_.find('\n', end + 1);
    if (line_end == std::string::npos)
      return;
    const std::string answer = read_.substr(0, end);
    const std::string code =
        read_.substr(end + std::string(kEnd).size(), line_end - end - std::string(kEnd).size());
    read_.erase(0, line_end + 1);
    if (code == "0") {
      take(answer);
    } else {
      log(LogLevel::warn,
          cat("--host-discovery: expected '",
              command_,
              "' to succeed, got exit code ",
              code,
              "; asking again"));
    }
    if (watch_ == 0)
      return;
  }
  if (read_.size() > kMaxAnswer) {
    log(LogLevel::warn,
        cat("--host-discovery: expected less than a mebibyte from '",
            command_,
            "', got more; not asking again"));
    stop();
  }
}

void HostWatch::take(const std::string& answer) {
  try {
    on_hosts_(parse_hostfile(answer, cat("what '", command_, "' printed")));
  } catch (const Error& error) {
    log(LogLevel::warn, error.message());
  }
}

}  // namespace muster
