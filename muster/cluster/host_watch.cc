// A shell runs the command every two seconds and ends each answer with a line that has the exit
// code. The loop reads the answers as they come, so nothing here ever waits for the command.
#include "muster/cluster/host_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/rank_env.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// Every answer ends with a line of its own: kEnd, and the command's exit code. The shell writes
// that line even if the command prints nothing.
constexpr std::string_view kEnd = "\n# muster: end of the list, exit code ";
constexpr auto kAskAgainAndAgain =
    "while :; do sleep 2; sh -c \"$1\"; printf '\\n# muster: end of the list, exit code %d\\n' $?; "
    "done";
constexpr size_t kMaxAnswer = size_t{1} << 20;  // bytes; no list of hosts is longer

}  // namespace

HostSpecs discover_hosts(const std::string& command, milliseconds patience) {
  const auto answer = output_of_command(command, "--host-discovery", {}, patience);
  return parse_hostfile(answer, cat("what '", command, "' printed"));
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
  processes_.loop().cancel(watch_);
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
    log_warning(
        "--host-discovery: the shell that runs the command has ended; no new hosts will be found");
    return stop();
  }
  read_.append(buffer, n);
  while (watch_ != 0 && take_answer()) {
  }
  if (watch_ != 0 && read_.size() > kMaxAnswer) {
    log_warning("--host-discovery: expected less than a mebibyte from '",
                printable(command_),
                "', got more; not asking again");
    stop();
  }
}

// Takes one whole answer from what has been read. False: there is none yet.
bool HostWatch::take_answer() {
  const size_t end = read_.find(kEnd);
  if (end == npos)
    return false;
  const size_t code_begin = end + kEnd.size();
  const size_t line_end = read_.find('\n', code_begin);
  if (line_end == npos)
    return false;
  const auto answer = read_.substr(0, end);
  const auto code = read_.substr(code_begin, line_end - code_begin);
  read_.erase(0, line_end + 1);
  if (code == "0") {
    take(answer);
  } else {
    log_warning("--host-discovery: expected '",
                printable(command_),
                "' to succeed, got exit code ",
                code,
                "; asking again");
  }
  return true;
}

// An answer that is no list of hosts is said, and nothing else follows from it.
void HostWatch::take(const std::string& answer) {
  try {
    on_hosts_(parse_hostfile(answer, cat("what '", command_, "' printed")));
  } catch (const Error& error) {
    log_warning(error.message());
  }
}

}  // namespace muster
