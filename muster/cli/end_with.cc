// The descriptor is a pipe's. Nothing is ever written to it: a read returns when whoever has the
// other end has ended, even by SIGKILL, since the kernel closes it then.
#include "muster/cli/end_with.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

#include "muster/base/blocked_signals.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr auto kVariable = "MUSTER_END_WITH";

int descriptor_of(const std::string& text) {
  const int fd = parse_count(text).value_or(-1);
  if (fd < 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw invalid_argument(
        kVariable, ": expected the number of an open descriptor, got '", printable(text), "'");
  return fd;
}

void wait_for_the_end(int fd) {
  char byte = 0;
  ssize_t n = 0;
  do {
    n = ::read(fd, &byte, 1);
  } while (n > 0 || (n < 0 && errno == EINTR));
  ::kill(::getpid(), SIGTERM);
}

}  // namespace

void end_with_parent() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr)
    return;
  const int fd = descriptor_of(text);
  ::unsetenv(kVariable);
  // The thread takes no signals, so that they reach the threads that wait for them.
  const BlockedSignals blocked;
  std::thread(wait_for_the_end, fd).detach();
}

}  // namespace muster
