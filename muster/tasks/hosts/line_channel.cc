// Both descriptors are set not to block, and the loop says when one of them can go on. What was
// read keeps the beginning of a line until the rest is there; what is to be written waits in
// pending_, of which taken_ bytes are gone. A handler may detach the channel or attach it to
// another loop, so that nothing of the old state is trusted after a call.
#include "muster/tasks/hosts/line_channel.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr size_t kReadAtATime = size_t{64} << 10;
// So many bytes that are gone may stay in the buffer: erasing them moves all others.
constexpr size_t kKeepTaken = size_t{1} << 20;

}  // namespace

LineChannel::LineChannel(Fd in, Fd out, size_t longest)
    : in_(std::move(in)), out_(std::move(out)), longest_(longest) {
  for (const Fd* const fd : {&in_, &out_}) {
    if (::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK) != 0)
      fail_errno("cannot prepare a connection", errno);
  }
}

// Lines that were read before another loop took the channel on are handed on by the new one.
void LineChannel::attach(EventLoop& loop, LineHandlers handlers) {
  loop_ = &loop;
  handlers_ = std::move(handlers);
  if (!ended_)
    reads_ = loop.watch_readable(in_.get(), [this] { read_some(); });
  if (queued() > 0)
    writes_ = loop.watch_writable(out_.get(), [this] { write_some(); });
  if (!read_.empty()) {
    soon_ = loop.call_at(Clock::now(), [this] {
      soon_ = 0;
      looked_ = 0;
      hand_on();
    });
  }
}

void LineChannel::detach() {
  if (loop_ == nullptr)
    return;
  for (EventLoop::Handle* const handle : {&reads_, &writes_, &soon_})
    loop_->cancel(std::exchange(*handle, 0));
  loop_ = nullptr;
}

// Tells the end once.
void LineChannel::finish(const std::string& why) {
  if (ended_)
    return;
  ended_ = true;
  loop_->cancel(std::exchange(reads_, 0));
  const auto end = handlers_.end;  // a copy: the handler may attach others
  end(why);
}

// Reads what is there and hands its lines on. Lines that were read before the channel was attached
// go first.
void LineChannel::read_some() {
  if (soon_ != 0)
    return;  // what came before goes first
  const size_t before = read_.size();
  read_.resize(before + kReadAtATime);
  const ssize_t n = ::read(in_.get(), read_.data() + before, kReadAtATime);
  const int error = errno;
  read_.resize(before + std::max<ssize_t>(0, n));
  if (n < 0 && (is_one_of(error, EAGAIN, EINTR)))
    return;
  if (n < 0)
    return finish(std::strerror(error));
  if (n == 0)
    return finish(read_.empty() ? "" : "it ended in the middle of a line");
  if (hand_on() && read_.size() > longest_)
    finish(cat("expected lines of at most ", longest_, " bytes, got a longer one"));
}

// Hands on all whole lines. False when a handler has detached or ended the channel: what is left is
// then another's.
bool LineChannel::hand_on() {
  const auto handle = handlers_.line;
  size_t from = 0;
  bool goes_on = true;
  while (goes_on) {
    const size_t newline = read_.find('\n', std::max(from, looked_));
    if (newline == npos) {
      looked_ = read_.size();
      break;
    }
    const auto line = read_.substr(from, newline - from);
    from = newline + 1;
    const EventLoop* const loop = loop_;
    handle(line);
    goes_on = !ended_ && loop_ != nullptr && loop_ == loop;
  }
  read_.erase(0, from);
  looked_ = goes_on ? looked_ - from : 0;
  return goes_on;
}

// As much as the other side takes is written at once, without the loop.
void LineChannel::send(const std::string& line) {
  if (!out_.valid() || closing_)
    return;
  pending_ += line;
  if (writes_ == 0)
    write_some();
}

// Writes what the other side takes now. The handler `drained` is called when nothing is left.
void LineChannel::write_some() {
  if (loop_ != nullptr)
    loop_->cancel(std::exchange(writes_, 0));
  const bool had = queued() > 0;
  while (queued() > 0) {
    const ssize_t n = ::write(out_.get(), pending_.data() + taken_, queued());
    if (n >= 0) {
      taken_ += n;
    } else if (errno == EAGAIN) {
      if (taken_ > kKeepTaken)
        pending_.erase(0, std::exchange(taken_, 0));
      if (loop_ != nullptr)
        writes_ = loop_->watch_writable(out_.get(), [this] { write_some(); });
      return;
    } else if (errno != EINTR) {
      taken_ = pending_.size();  // nobody reads any more, which the end of the input tells too
    }
  }
  pending_.clear();
  taken_ = 0;
  if (closing_)
    out_.reset();
  if (had && loop_ != nullptr && handlers_.drained)
    handlers_.drained();
}

void LineChannel::close_output() {
  if (std::exchange(closing_, true))
    return;
  if (queued() == 0)
    out_.reset();
}

}  // namespace muster
