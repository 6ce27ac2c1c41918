// How a thread waits for another without a system call, and how long one that sleeps does so at
// most.
#pragma once

#include <atomic>
#include <chrono>

#include "muster/base/clock.h"

namespace muster::shm {

// Tells the processor that this is a loop that waits: x86 saves power and leaves the loop without a
// penalty; on arm64 `isb` holds the thread up for some ten nanoseconds, where `yield` does nothing.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// The time since it was made, for a loop that looks all the time: a look takes from 5 to 50 ns,
// depending on the processor, and asking for the time as long as some of them.
class WaitingTime {
 public:
  // Whether that long has passed. It asks for the time once in some looks, unless `now`.
  bool is_over(std::chrono::nanoseconds limit, bool now = false) {
    constexpr int kLooksBetweenTimes = 16;
    if (now || ++looks_ % kLooksBetweenTimes == 0)
      passed_ = Clock::now() - start_;
    return passed_ >= limit;
  }

 private:
  const Clock::time_point start_ = Clock::now();
  std::chrono::nanoseconds passed_{0};
  int looks_ = 0;
};

// A rank that sleeps, and has reason to expect something, looks again after this time, come what
// may. Tests make it an hour, so that a wake-up that is lost is not made good unseen.
inline std::atomic<milliseconds> longest_sleep{milliseconds(100)};

}  // namespace muster::shm
