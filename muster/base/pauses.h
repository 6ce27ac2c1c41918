// Pauses of who asks again and again until a Deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "muster/base/clock.h"

namespace muster {

// Blocking: `most`, or until the deadline.
inline void sleep_within(const Deadline& deadline, std::chrono::microseconds most) {
  std::this_thread::sleep_for(std::min<std::chrono::microseconds>(most, deadline.left()));
}

// Each is twice as long as the last.
struct Pauses {
  std::chrono::microseconds next = milliseconds(2);
  std::chrono::microseconds longest = milliseconds(100);

  void wait(const Deadline& deadline) {
    sleep_within(deadline, next);
    next = std::min(2 * next, longest);
  }
};

}  // namespace muster
