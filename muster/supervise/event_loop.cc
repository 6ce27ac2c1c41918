// How it works: epoll carries each watch's handle, and the handle leads to the function to call.
// Handles are never used twice, so an event for a watch that is gone meets nothing. Timers are kept
// in the order of their times, and the first of them bounds the wait.
#include "muster/supervise/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lookup.h"

namespace muster {

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_.valid())
    fail_errno("cannot make an epoll instance", errno);
}

EventLoop::Handle EventLoop::watch_readable(int fd, Callback ready) {
  return watch(fd, EPOLLIN, std::move(ready));
}

EventLoop::Handle EventLoop::watch_writable(int fd, Callback ready) {
  return watch(fd, EPOLLOUT, std::move(ready));
}

EventLoop::Handle EventLoop::watch(int fd, uint32_t events, Callback ready) {
  const Handle handle = ++last_handle_;
  epoll_event event{};
  event.events = events;
  event.data.u64 = handle;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    fail_errno("cannot wait for a file descriptor", errno);
  watches_.emplace(handle, Watch{fd, std::move(ready)});
  return handle;
}

EventLoop::Handle EventLoop::call_at(TimePoint at, Callback due) {
  const Handle handle = ++last_handle_;
  timers_.emplace(at, Timer{handle, std::move(due)});
  return handle;
}

// The handle may belong to the function that is erased here, so it is set to 0 first.
void EventLoop::cancel(Handle& handle) {
  const Handle going = std::exchange(handle, 0);
  const auto watch = watches_.find(going);
  if (watch != watches_.end()) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watch->second.fd, nullptr);
    watches_.erase(watch);
    return;
  }
  const auto timer = std::ranges::find_if(
      timers_, [going](const auto& entry) { return entry.second.handle == going; });
  if (timer != timers_.end())
    timers_.erase(timer);
}

// epoll's own measure: whole milliseconds, rounded up so that the time has come; -1 is for ever. An
// hour is the most, after which the caller just asks again.
int EventLoop::timeout_ms(OptionalTime until) const {
  if (!timers_.empty() && (!until || timers_.begin()->first < *until))
    until = timers_.begin()->first;
  if (!until)
    return -1;
  const auto left = std::chrono::ceil<milliseconds>(*until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

// A timer is erased before it is called, as it may set itself anew.
void EventLoop::call_due_timers() {
  while (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
    const auto due = std::move(timers_.begin()->second.due);
    timers_.erase(timers_.begin());
    due();
  }
}

void EventLoop::run_once(OptionalTime until) {
  constexpr int kMostEvents = 64;
  std::array<epoll_event, kMostEvents> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents, timeout_ms(until));
  if (count < 0 && errno != EINTR)
    fail_errno("epoll_wait", errno);
  for (const epoll_event& event : std::span(events).first(std::max(count, 0))) {
    const Handle handle = event.data.u64;  // a copy: find() takes a reference, the struct is packed
    const Watch* const watch = value_at(watches_, handle);
    if (watch == nullptr)
      continue;  // an earlier callback of this wait cancelled it
    // A copy is called, since the callback may cancel itself.
    const auto ready = watch->ready;
    ready();
  }
  call_due_timers();
}

}  // namespace muster
