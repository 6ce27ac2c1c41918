// Time that clock changes cannot touch: everything that waits, waits for a Deadline on the
// monotonic clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace muster {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using TimePoint = Clock::time_point;
using OptionalTime = std::optional<TimePoint>;
using OptionalDuration = std::optional<milliseconds>;
using WallClock = std::chrono::system_clock;  // its times mean something to people and other hosts
using WallTime = WallClock::time_point;

class Deadline {
 public:
  static constexpr std::chrono::years kFarthest{100};

  // At most 100 years away: clocks do not count much further.
  template <class Rep, class Period>
  explicit Deadline(std::chrono::duration<Rep, Period> from_now)
      : limit_(std::clamp<std::common_type_t<decltype(from_now), std::chrono::years>>(
            from_now, -kFarthest, kFarthest)),
        at_(Clock::now() + limit_) {}

  // What it was set to, for messages.
  milliseconds limit() const { return std::chrono::floor<milliseconds>(limit_); }
  bool passed() const { return Clock::now() >= at_; }
  // Time left, never negative, rounded up.
  milliseconds left() const {
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(at_ - Clock::now()));
  }

  // The same as poll() takes it; at most twelve days.
  int left_for_poll() const { return static_cast<int>(std::min<int64_t>(left().count(), 1 << 30)); }

 private:
  std::chrono::nanoseconds limit_;
  TimePoint at_;
};

inline double in_seconds(std::chrono::duration<double> time) {
  return time.count();
}

inline double seconds_since(TimePoint start) {
  return in_seconds(Clock::now() - start);
}

}  // namespace muster
