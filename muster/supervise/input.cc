#include "muster/supervise/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "muster/base/error.h"

namespace muster {

namespace {

constexpr std::chrono::milliseconds kForegroundCheck{500};

bool in_foreground() {
  return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

}  // namespace

Fd Input::open() {
  close();
  if (::isatty(STDIN_FILENO) == 0)
    return {};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    fail_errno("cannot make a pipe", errno);
  Fd child_end(ends[0]);
  pipe_ = Fd(ends[1]);
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  read_terminal();
  return child_end;
}

void Input::close() {
  loop_.cancel(std::exchange(watch_, 0));
  pipe_.reset();
  pending_.clear();
}

// (Re)arms the watch. In the background the terminal is not ours to read: reading would stop this
// process.
void Input::read_terminal() {
  loop_.cancel(std::exchange(watch_, 0));
  if (!in_foreground()) {
    watch_ = loop_.call_at(Clock::now() + kForegroundCheck, [this] { read_terminal(); });
    return;
  }
  watch_ = loop_.watch_readable(STDIN_FILENO, [this] {
    if (!in_foreground())
      return read_terminal();
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
      return;
    if (n <= 0)
      return close();  // Ctrl-D, or the terminal is gone: end of file for the child
    pending_.append(buffer, static_cast<size_t>(n));
    write_pipe();
  });
}

// The terminal is read on only when the child has taken what there is.
void Input::write_pipe() {
  while (!pending_.empty()) {
    const ssize_t n = ::write(pipe_.get(), pending_.data(), pending_.size());
    if (n > 0) {
      pending_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      loop_.cancel(std::exchange(watch_, 0));
      watch_ = loop_.watch_writable(pipe_.get(), [this] {
        write_pipe();
        if (pipe_.valid() && pending_.empty())
          read_terminal();
      });
      return;
    } else if (errno != EINTR) {
      return close();  // the child closed its input
    }
  }
}

}  // namespace muster
