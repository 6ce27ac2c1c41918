// The clock of activity files: the host's monotonic one, which all of its processes share.
#pragma once

#include <cstdint>
#include <ctime>

namespace muster {

inline int64_t nanoseconds_of(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

inline int64_t activity_now() noexcept {
  return nanoseconds_of(CLOCK_MONOTONIC);
}

// Of times that a file says, which may be anything: sums wrap rather than overflow.
inline int64_t time_sum(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline int64_t time_difference(int64_t later, int64_t earlier) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(later) - static_cast<uint64_t>(earlier));
}

}  // namespace muster
