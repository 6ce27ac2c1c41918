// A shell runs the command every two seconds and ends each answer with a line that has the exit
// code. The loop reads the answers as they come, so nothing here ever waits for the command.
#include "muster/cluster/host_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// Every answer ends with a line of its own: kEnd, and the command's exit code. The shell writes
// that line even if the command prints nothing.
constexpr std::string_view kEnd = "\n# muster: end of the list, exit code ";
constexpr const char* kAskAgainAndAgain =
    "while :; do sleep 2; sh -c \"$1\"; printf '\\n# muster: end of the list, exit code %d\\n' $?; "
    "done";
constexpr size_t kMaxAnswer = size_t{1} << 20;  // bytes; no list of hosts is longer

// Blocking: until there is something to read, or the deadline. False: the deadline came first.
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

// The child's output until it has ended; nothing when it takes longer.
std::optional<std::string> answer_in_time(const Child& child,
                                          const Fd& answers,
                                          const Deadline& deadline) {
  std::string answer;
  char buffer[4096];
  while (wait_readable(answers.get(), deadline)) {
    const ssize_t n = ::read(answers.get(), buffer, sizeof(buffer));
    if (n > 0 && answer.size() < kMaxAnswer)
      answer.append(buffer, n);
    const bool was_interrupted = n < 0 && errno == EINTR;
    if (n > 0 || was_interrupted)
      continue;
    if (!wait_readable(child.pidfd.get(), deadline))
      return std::nullopt;
    return answer;
  }
  return std::nullopt;
}

// Blocking: until the process has ended. Returns waitpid's status.
int wait_for_end(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

// The command is killed with its whole process group if it does not end in time.
std::vector<HostSpec> discover_hosts(const std::string& command,
                                     std::chrono::milliseconds patience) {
  Pipe pipe = open_pipe();
  const Child child = spawn_child({.argv = {"sh", "-c", command},
                                   .environment = own_environment(),
                                   .stdout_fd = pipe.write_end.get()});
  pipe.write_end.reset();
  const auto answer = answer_in_time(child, pipe.read_end, Deadline(patience));
  if (!answer)
    ::kill(-child.pid, SIGKILL);
  const int status = wait_for_end(child.pid);
  if (!answer) {
    throw Error(ErrorCode::timeout,
                cat("--host-discovery: expected '",
                    printable(command),
                    "' to end within ",
                    format_duration(patience),
                    ", got no end; correct the command"));
  }
  if (status != 0) {
    const std::string end = WIFEXITED(status) ? cat("exit code ", WEXITSTATUS(status)) : "a signal";
    throw Error(ErrorCode::io,
                cat("--host-discovery: expected '", printable(command), "' to succeed, got ", end));
  }
  return parse_hostfile(*answer, cat("what '", command, "' printed"));
}

// The first answer comes after the first pause: the caller has asked by discover_hosts before.
HostWatch::HostWatch(ProcessSet& processes, int id, const std::string& command, OnHosts on_hosts)
    : processes_(processes), id_(id), command_(command), on_hosts_(std::move(on_hosts)) {
  Pipe pipe = open_pipe();
  answers_ = std::move(pipe.read_end);
  ::fcntl(answers_.get(), F_SETFL, O_NONBLOCK);
  processes_.spawn(id,
                   {.argv = {"sh", "-c", kAskAgainAndAgain, "sh", command},
                    .environment = own_environment(),
                    .stdout_fd = pipe.write_end.get()});
  watch_ = processes_.loop().watch_readable(answers_.get(), [this] { read_some(); });
}

// The shell and the command that it waits for are one process group.
void HostWatch::stop() {
  if (watch_ == 0)
    return;
  processes_.loop().cancel(std::exchange(watch_, 0));
  const pid_t pid = processes_.pid_of(id_);
  if (pid > 0)
    ::kill(-pid, SIGKILL);
}

// The callback may stop the watch: then nothing more is taken.
void HostWatch::read_some() {
  char buffer[4096];
  const ssize_t n = ::read(answers_.get(), buffer, sizeof(buffer));
  if (n < 0 && (is_one_of(errno, EAGAIN, EINTR)))
    return;
  if (n <= 0) {
    log(LogLevel::warn,
        "--host-discovery: the shell that runs the command has ended; no new hosts will be found");
    return stop();
  }
  read_.append(buffer, n);
  while (watch_ != 0 && take_answer()) {
  }
  if (watch_ != 0 && read_.size() > kMaxAnswer) {
    log(LogLevel::warn,
        cat("--host-discovery: expected less than a mebibyte from '",
            printable(command_),
            "', got more; not asking again"));
    stop();
  }
}

// Takes one whole answer from what has been read. False: there is none yet.
bool HostWatch::take_answer() {
  const size_t end = read_.find(kEnd);
  if (end == std::string::npos)
    return false;
  const size_t code_begin = end + kEnd.size();
  const size_t line_end = read_.find('\n', code_begin);
  if (line_end == std::string::npos)
    return false;
  const std::string answer = read_.substr(0, end);
  const std::string code = read_.substr(code_begin, line_end - code_begin);
  read_.erase(0, line_end + 1);
  if (code == "0") {
    take(answer);
  } else {
    log(LogLevel::warn,
        cat("--host-discovery: expected '",
            printable(command_),
            "' to succeed, got exit code ",
            code,
            "; asking again"));
  }
  return true;
}

// An answer that is no list of hosts is said, and nothing else follows from it.
void HostWatch::take(const std::string& answer) {
  try {
    on_hosts_(parse_hostfile(answer, cat("what '", command_, "' printed")));
  } catch (const Error& error) {
    log(LogLevel::warn, error.message());
  }
}

}  // namespace muster
