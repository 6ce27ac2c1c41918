// poll(2) of one descriptor.
#pragma once

#include <poll.h>

namespace muster {

// 1 when it is ready, 0 after the time, -1 with errno. Below 0, `timeout_ms` is for ever.
// Blocking: until then.
inline int poll_one(int fd, short events, int timeout_ms) {
  pollfd one = {.fd = fd, .events = events, .revents = 0};
  return ::poll(&one, 1, timeout_ms);
}

}  // namespace muster
