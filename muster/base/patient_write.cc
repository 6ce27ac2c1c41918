// How it works: a regular file never blocks, and a socket can be told not to. A pipe or a terminal
// is opened a second time, without blocking; where that cannot be done, it is polled before a short
// write.
#include "muster/base/patient_write.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "muster/base/clock.h"
#include "muster/base/poll_one.h"

namespace muster {

namespace {

// A pipe that polls writable takes this much without blocking.
constexpr size_t kPolledWriteBytes = 512;

}  // namespace

// O_NONBLOCK belongs to the open file, which the shell and others share with us; so a second open
// file is made.
NonBlockingWriter::NonBlockingWriter(int fd) : fd_(fd) {
  struct stat info{};
  if (::fstat(fd_, &info) != 0)
    return;  // write will say so
  if (S_ISSOCK(info.st_mode)) {
    mode_ = Mode::socket;
  } else if (!S_ISREG(info.st_mode)) {
    std::array<char, 32> path{};
    std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd_);
    own_ = Fd(::open(path.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    mode_ = own_.valid() ? Mode::nonblocking : Mode::polled;
  }
}

long NonBlockingWriter::write(std::string_view bytes) const {
  switch (mode_) {
    case Mode::direct:
      return ::write(fd_, bytes.data(), bytes.size());
    case Mode::nonblocking:
      return ::write(own_.get(), bytes.data(), bytes.size());
    case Mode::socket:
      return ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Mode::polled:
      break;
  }
  if (poll_one(fd_, POLLOUT, 0) <= 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, bytes.data(), std::min(bytes.size(), kPolledWriteBytes));
}

// The deadline begins anew with each byte that is taken.
bool write_within(int fd, std::string_view bytes, milliseconds limit) noexcept {
  const NonBlockingWriter writer(fd);
  Deadline deadline(limit);
  while (!bytes.empty()) {
    const long taken = writer.write(bytes);
    if (taken > 0) {
      bytes.remove_prefix(taken);
      deadline = Deadline(limit);
      continue;
    }
    const bool may_take_more = taken == 0 || errno == EAGAIN || errno == EINTR;
    if (!may_take_more || deadline.passed())
      return false;
    poll_one(writer.fd(), POLLOUT, deadline.left_for_poll());
  }
  return true;
}

}  // namespace muster
