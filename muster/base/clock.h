// Time that clock changes cannot touch: everything that waits, waits for a Deadline on the monotonic clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace muster {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds from_now) : at_(Clock::now() + from_now) {}

  bool passed() const { return Clock::now() >= at_; }
  // Time left, never negative, rounded up: right for poll().
  std::chrono::milliseconds left() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()));
  }

 private:
  Clock::time_point at_;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace muster
