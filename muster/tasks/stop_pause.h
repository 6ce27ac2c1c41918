// The pause before a task starts again that has stopped with exit code 75. It grows while the task
// stops soon after each start, so that one that does nothing else does not keep the machine busy
// with starting it.
#pragma once

#include <algorithm>
#include <cmath>

namespace muster {

constexpr double kLongestStopPause = 60;  // seconds
constexpr double kLongEnough =
    60;  // a start that lasted so many seconds is not followed by a pause

// Starts that stopped soon, one after the other, with one that lasted `seconds`.
inline int count_stops(int before, double seconds) {
  return seconds >= kLongEnough ? 0 : before + 1;
}

// 1 s, 2 s, 4 s … a minute.
inline double pause_after_stops(int count) {
  return count == 0 ? 0 : std::min(std::ldexp(1.0, std::min(count - 1, 30)), kLongestStopPause);
}

}  // namespace muster
