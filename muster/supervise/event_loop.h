// One thread's waiting: file descriptors that become ready and times that come, each with a
// function to call. Used by ProcessSet and by the output and input pumps. Single-threaded;
// callbacks may add and remove anything.
#pragma once

#include <cstdint>
#include <map>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/base/functions.h"

namespace muster {

class EventLoop {
 public:
  using Handle = uint64_t;

  EventLoop();

  // Calls `ready` whenever `fd` is readable (or hung up). The fd stays the caller's and must
  // outlive the handle. Throws: io when the kernel cannot watch such a file (a regular file is
  // always ready).
  Handle watch_readable(int fd, Callback ready);
  Handle watch_writable(int fd, Callback ready);

  // Calls `due` once, when `at` has come.
  Handle call_at(TimePoint at, Callback due);

  // Forgets a watch or a timer, and sets its handle to 0. A handle of 0 and one that has gone are
  // fine.
  void cancel(Handle& handle);
  void cancel(Handle&& handle) { cancel(handle); }

  // Waits until something is ready or `until` has come, then calls what is due, in order of
  // readiness. Blocking: until then; nothing = for ever.
  void run_once(OptionalTime until);

 private:
  struct Watch {
    int fd;
    Callback ready;
  };
  struct Timer {
    Handle handle;
    Callback due;
  };

  Handle watch(int fd, uint32_t events, Callback ready);
  int timeout_ms(OptionalTime until) const;
  void call_due_timers();

  Fd epoll_;
  Handle last_handle_ = 0;
  std::map<Handle, Watch> watches_;
  std::multimap<TimePoint, Timer> timers_;
};

}  // namespace muster
