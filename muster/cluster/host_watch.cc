#include "muster/cluster/host_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/log.h"
#include "muster/base/rank_env.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Every answer ends with a line of its own: this, and the command's exit code.
constexpr const char* kEnd = "\n# muster: end of the list, exit code ";
constexpr const char* kAskAgainAndAgain =
    "while :; do sleep 2; sh -c \"$1\"; printf '\\n# muster: end of the list, exit code %d\\n' $?; done";
constexpr size_t kMaxAnswer = size_t{1} << 20;

}  // namespace

std::vector<HostSpec> discover_hosts(const std::string& command) {
  return parse_hostfile(output_of_shell(command, "--host-discovery"), cat("what '", command, "' printed"));
}

HostWatch::HostWatch(ProcessSet& processes, int id, const std::string& command, OnHosts on_hosts)
    : processes_(processes), id_(id), command_(command), on_hosts_(std::move(on_hosts)) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("cannot make a pipe", errno);
  answers_ = Fd(ends[0]);
  const Fd child_end(ends[1]);
  ::fcntl(answers_.get(), F_SETFL, O_NONBLOCK);
  processes_.spawn(id, {.argv = {"sh", "-c", kAskAgainAndAgain, "sh", command},
                        .environment = own_environment(),
                        .stdout_fd = child_end.get()});
  watch_ = processes_.loop().watch_readable(answers_.get(), [this] { read_some(); });
}

void HostWatch::stop() {
  if (watch_ == 0) return;
  processes_.loop().cancel(std::exchange(watch_, 0));
  if (const pid_t pid = processes_.pid_of(id_); pid > 0) ::kill(-pid, SIGKILL);
}

void HostWatch::read_some() {
  char buffer[4096];
  const ssize_t n = ::read(answers_.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    log(LogLevel::warn,
        "--host-discovery: the shell that runs the command has ended; no new hosts will be found");
    return stop();
  }
  read_.append(buffer, static_cast<size_t>(n));
  for (size_t end = 0; (end = read_.find(kEnd)) != std::string::npos;) {
    const size_t line_end = read_.find('\n', end + 1);
    if (line_end == std::string::npos) return;
    const std::string answer = read_.substr(0, end);
    const std::string code =
        read_.substr(end + std::string(kEnd).size(), line_end - end - std::string(kEnd).size());
    read_.erase(0, line_end + 1);
    if (code == "0") {
      take(answer);
    } else {
      log(LogLevel::warn, cat("--host-discovery: expected '", command_, "' to succeed, got exit code ", code,
                              "; asking again"));
    }
    if (watch_ == 0) return;
  }
  if (read_.size() > kMaxAnswer) {
    log(LogLevel::warn, cat("--host-discovery: expected less than a mebibyte from '", command_,
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
