#include "benchmarks/measure.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster::bench {

namespace {

// The child's standard streams: nothing to read, nowhere to write but `stdout_fd`.
pid_t start(const Command& command, int null_fd, int stdout_fd) {
  std::vector<char*> argv;
  for (const std::string& argument : command)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0)
    fail_errno("benchmark: cannot fork", errno);
  if (pid == 0) {
    ::dup2(null_fd, 0);
    ::dup2(stdout_fd, 1);
    ::dup2(null_fd, 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  return pid;
}

int exit_code_of(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid)
    fail_errno("benchmark: cannot wait", errno);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void expect_success(const Command& command, int exit_code) {
  if (exit_code == 0)
    return;
  throw Error(ErrorCode::failed_precondition,
              cat("benchmark: expected exit code 0, got ",
                  exit_code,
                  " (",
                  join(command, " "),
                  "); run it by hand to see why"));
}

Fd open_null() {
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid())
    fail_errno("benchmark: cannot open /dev/null", errno);
  return null;
}

}  // namespace

double Sample::minimum() const {
  return *std::min_element(ms.begin(), ms.end());
}

double Sample::median() const {
  std::vector<double> sorted = ms;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double time_processes(const Command& command, int count) {
  const Fd null = open_null();
  const auto begin = Clock::now();
  std::vector<pid_t> pids;
  pids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    pids.push_back(start(command, null.get(), null.get()));
  int worst = 0;
  for (const pid_t pid : pids)
    worst = std::max(worst, exit_code_of(pid));
  const double ms = seconds_since(begin) * 1e3;
  expect_success(command, worst);
  return ms;
}

std::string output_of(const Command& command) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail_errno("benchmark: cannot make a pipe", errno);
  const Fd from(ends[0]);
  Fd to(ends[1]);
  const pid_t pid = start(command, open_null().get(), to.get());
  to.reset();
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(from.get(), part, sizeof(part))) > 0;)
    text.append(part, static_cast<size_t>(got));
  expect_success(command, exit_code_of(pid));
  return text;
}

bool works(const Command& command) {
  const Fd null = open_null();
  return exit_code_of(start(command, null.get(), null.get())) == 0;
}

}  // namespace muster::bench
