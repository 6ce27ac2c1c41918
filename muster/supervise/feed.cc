// The text is written first, as much at a time as the pipe takes. Then each piece of standard input
// is read and written before the next is read, so that a slow child slows its writer.
#include "muster/supervise/feed.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"

namespace muster {

namespace {

constexpr milliseconds kForegroundCheck{500};  // a person does not notice it

// Reading a terminal from the background would stop this process.
bool may_read_input() {
  return ::isatty(STDIN_FILENO) == 0 || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

}  // namespace

Feed::Feed(EventLoop& loop, Fd pipe, std::string text, bool then_standard_input)
    : loop_(loop),
      pipe_(std::move(pipe)),
      pending_(std::move(text)),
      has_more_(then_standard_input) {
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  write_some();
}

// The text that has not been written may hold a secret.
void Feed::close() {
  loop_.cancel(watch_);
  pipe_.reset();
  if (!pending_.empty())
    OPENSSL_cleanse(pending_.data(), pending_.size());
}

// Called when the pipe takes more. A reader that has gone ends the feed.
void Feed::write_some() {
  loop_.cancel(watch_);
  while (!pending_.empty()) {
    const ssize_t n = ::write(pipe_.get(), pending_.data(), pending_.size());
    if (n > 0) {
      OPENSSL_cleanse(pending_.data(), n);  // it may hold a secret
      pending_.erase(0, n);
    } else if (errno == EAGAIN) {
      watch_ = loop_.watch_writable(pipe_.get(), [this] { write_some(); });
      return;
    } else if (errno != EINTR) {
      return close();  // the reader has gone
    }
  }
  if (!has_more_)
    return close();
  wait_for_input();
}

// From the background it looks now and then whether it has come to the foreground.
void Feed::wait_for_input() {
  if (!may_read_input()) {
    watch_ = loop_.call_at(Clock::now() + kForegroundCheck, [this] { wait_for_input(); });
    return;
  }
  try {
    watch_ = loop_.watch_readable(STDIN_FILENO, [this] { read_some(); });
  } catch (const Error&) {  // a regular file is always ready
    watch_ = loop_.watch_writable(pipe_.get(), [this] { read_some(); });
  }
}

// Called when there is input, or its end.
void Feed::read_some() {
  loop_.cancel(watch_);
  if (!may_read_input())
    return wait_for_input();
  char buffer[65536];
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
  if (n < 0 && (is_one_of(errno, EINTR, EAGAIN)))
    return wait_for_input();
  if (n <= 0) {
    has_more_ = false;
  } else {
    pending_.assign(buffer, n);
  }
  write_some();
}

}  // namespace muster
