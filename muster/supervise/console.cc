#include "muster/supervise/console.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// A pipe that polls writable takes this much without blocking.
constexpr size_t kPolledWriteBytes = 512;

}  // namespace

Console::Console(EventLoop& loop, int fd, ConsoleOptions options)
    : loop_(loop), fd_(fd), options_(options), last_progress_(Clock::now()) {
  open_nonblocking();
}

Console::~Console() {
  loop_.cancel(watch_);
  loop_.cancel(stall_timer_);
}

// O_NONBLOCK belongs to the open file, which the shell and others share with us; so a second open file is
// made.
void Console::open_nonblocking() {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) {
    closed_ = true;
  } else if (S_ISSOCK(info.st_mode)) {
    mode_ = Mode::socket;
  } else if (!S_ISREG(info.st_mode)) {
    const std::string path = cat("/proc/self/fd/", fd_);
    own_ = Fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    mode_ = own_.valid() ? Mode::nonblocking : Mode::polled;
  }
}

bool Console::same_as(int fd) const {
  struct stat mine = {};
  struct stat other = {};
  return ::fstat(fd_, &mine) == 0 && ::fstat(fd, &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino && mine.st_rdev == other.st_rdev;
}

// Like write(2): the number of bytes taken, or -1 with errno.
long Console::write_some(std::string_view text) const {
  switch (mode_) {
    case Mode::direct:
      return ::write(fd_, text.data(), text.size());
    case Mode::nonblocking:
      return ::write(own_.get(), text.data(), text.size());
    case Mode::socket:
      return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Mode::polled:
      break;
  }
  pollfd poll = {.fd = fd_, .events = POLLOUT, .revents = 0};
  if (::poll(&poll, 1, 0) <= 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, text.data(), std::min(text.size(), kPolledWriteBytes));
}

void Console::write(std::string_view text) {
  if (closed_ || text.empty()) return;
  if (stalled_) return drop(text);
  if (dropped_bytes_ > 0) {
    buffer_ += cat("\n[muster] ", format_bytes(dropped_bytes_),
                   " of output not shown here: the reader had stopped (--tee 3 keeps it in files)\n");
    dropped_bytes_ = 0;
  }
  if (size() == 0) last_progress_ = Clock::now();
  buffer_ += text;
  if (watch_ == 0) push();
  full_ = !closed_ && size() >= options_.buffer_bytes;
  if (full_ && stall_timer_ == 0) check_stall();
}

void Console::drop(std::string_view text) {
  dropped_bytes_ += text.size();
}

void Console::close() {
  closed_ = true;
  full_ = false;
  buffer_.clear();
  written_ = 0;
  loop_.cancel(std::exchange(watch_, 0));
  loop_.cancel(std::exchange(stall_timer_, 0));
  if (on_room) on_room();
}

// Writes until the reader takes no more.
void Console::push() {
  while (size() > 0) {
    const long taken = write_some(std::string_view(buffer_).substr(written_));
    if (taken > 0) {
      written_ += static_cast<size_t>(taken);
      last_progress_ = Clock::now();
    } else if (taken < 0 && errno == EINTR) {
      continue;
    } else if (taken < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      return close();  // EPIPE, EIO, ENOSPC: it will not take the rest either
    } else {
      break;
    }
  }
  if (written_ == buffer_.size() || written_ >= options_.buffer_bytes) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  if (size() > 0) {
    if (watch_ == 0) {
      watch_ = loop_.watch_writable(own_.valid() ? own_.get() : fd_, [this] { push(); });
    }
  } else {
    loop_.cancel(std::exchange(watch_, 0));
    loop_.cancel(std::exchange(stall_timer_, 0));
  }
  if ((full_ || stalled_) && size() <= options_.buffer_bytes / 2) {
    full_ = stalled_ = false;
    if (on_room) on_room();
  }
}

// Gives up on a reader that has taken nothing of a full buffer for too long; else looks again later.
void Console::check_stall() {
  stall_timer_ = 0;
  if (!full_) return;
  const auto due = last_progress_ + options_.stalled_after;
  if (Clock::now() < due) {
    stall_timer_ = loop_.call_at(due, [this] { check_stall(); });
    return;
  }
  stalled_ = true;
  full_ = false;
  if (on_room) on_room();
}

void Console::flush() {
  while (size() > 0 && !closed_ && Clock::now() < last_progress_ + options_.stalled_after) {
    push();
    if (size() > 0) loop_.run_once(last_progress_ + options_.stalled_after);
  }
}

}  // namespace muster
