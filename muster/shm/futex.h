// Sleeping on a word of shared memory. Source: futex(2).
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace muster::shm {

// The kernel sees the word that the processors see, and processes share no lock.
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

// Sleeps until somebody wakes it, `word` is no longer `seen`, or `patience` is over.
inline void futex_wait(std::atomic<uint32_t>& word,
                       uint32_t seen,
                       std::chrono::nanoseconds patience) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
  const timespec time = {.tv_sec = seconds.count(), .tv_nsec = (patience - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Wakes who sleeps on the bell, or is about to.
inline void ring(std::atomic<uint32_t>& bell) {
  bell.fetch_add(1);
  futex_wake_all(bell);
}

}  // namespace muster::shm
