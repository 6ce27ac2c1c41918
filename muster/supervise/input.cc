// How it works: one watch at a time, which waits for the terminal, for room in the pipe, or for
// this process to come to the foreground. The terminal is read only when the child has taken all
// that was read before, so that no more than one read is ever held here.
#include "muster/supervise/input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace muster {

namespace {

constexpr std::chrono::milliseconds kForegroundCheck{500};

// A process in the background that reads its terminal is stopped by the kernel.
bool in_foreground() {
  return ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

}  // namespace

Fd Input::open() {
  close();
  if (::isatty(STDIN_FILENO) == 0)
    return {};
  Pipe pipe = open_pipe();
  pipe_ = std::move(pipe.write_end);
  // Only this end must not block: the child's is as a program expects its standard input.
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  watch_terminal();
  return std::move(pipe.read_end);
}

void Input::close() {
  loop_.cancel(watch_);
  pipe_.reset();
  pending_.clear();
}

// In the background the terminal is not watched, and it is looked again after a while.
void Input::watch_terminal() {
  loop_.cancel(watch_);
  if (in_foreground()) {
    watch_ = loop_.watch_readable(STDIN_FILENO, [this] { read_terminal(); });
  } else {
    watch_ = loop_.call_at(Clock::now() + kForegroundCheck, [this] { watch_terminal(); });
  }
}

void Input::read_terminal() {
  if (!in_foreground())
    return watch_terminal();
  char buffer[4096];
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
  if (n < 0 && (errno == EINTR || errno == EAGAIN))
    return;
  if (n <= 0)
    return close();  // Ctrl-D, or the terminal is gone: end of file for the child
  pending_.append(buffer, n);
  write_pipe();
}

// What the child does not take at once is written when the pipe has room; until then the terminal
// is not watched.
void Input::write_pipe() {
  while (!pending_.empty()) {
    const ssize_t n = ::write(pipe_.get(), pending_.data(), pending_.size());
    if (n > 0) {
      pending_.erase(0, n);
    } else if (errno == EAGAIN) {
      loop_.cancel(watch_);
      watch_ = loop_.watch_writable(pipe_.get(), [this] { on_room(); });
      return;
    } else if (errno != EINTR) {
      return close();  // the child closed its input
    }
  }
}

void Input::on_room() {
  write_pipe();
  if (pipe_.valid() && pending_.empty())
    watch_terminal();
}

}  // namespace muster
