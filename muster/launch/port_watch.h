// Watches who listens on MASTER_PORT. The launcher cannot keep another user's socket with
// SO_REUSEADDR off the port that it holds for rank 0 (port.h): it asks the kernel who listens
// there, again and again until it is somebody of the job. From then on nobody else can.
#pragma once

#include <string>

#include "muster/base/clock.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"
#include "muster/launch/tcp_listeners.h"
#include "muster/supervise/event_loop.h"

namespace muster {

class PortWatch : NoCopy {
 public:
  // Looks at once, then every few milliseconds and later less often. `on_stranger` is told once, in
  // an error's words, of a listener whose user is neither this process's, nor that of any of its
  // descendants, nor root. 0: no port to watch.
  PortWatch(EventLoop& loop, int port, TextFunction on_stranger);
  ~PortWatch() { stop(); }

  // Now, when there is a reason.
  void look();

  void stop();

 private:
  void look_later();

  EventLoop& loop_;
  int port_;  // 0: no more
  TextFunction on_stranger_;
  TcpListeners listeners_;
  TimePoint since_ = Clock::now();
  EventLoop::Handle timer_ = 0;
};

}  // namespace muster
