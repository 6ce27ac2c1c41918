// The main thread's times, as its activity file has them: for the rank itself, which goes on
// writing, and for readers, who have a copy of the file.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "muster/trace/activity_clock.h"
#include "muster/trace/activity_layout.h"

namespace muster {

struct ActivityTimes {
  uint32_t category = 0;  // since since_ns
  int64_t since_ns = 0;
  std::array<int64_t, kActivityCategories> totals_ns{};  // until since_ns
  bool is_of_one_moment = false;

  // What the header has now. The totals say until when they count, so that no time is in them and
  // after them too, even where the rank was killed between two of its words.
  static ActivityTimes in(ActivityHeader& header) noexcept {
    ActivityTimes times;
    const int64_t present = std::atomic_ref(header.present).load(std::memory_order_acquire);
    times.category = category_in(present);
    times.since_ns = header.opened_ns;
    for (size_t i = 0; i < kActivityCategories; ++i) {
      times.totals_ns[i] = std::atomic_ref(header.totals_ns[i]).load(std::memory_order_relaxed);
      times.since_ns = time_sum(times.since_ns, times.totals_ns[i]);
    }
    times.is_of_one_moment = times.since_ns == since_of(present);
    return times;
  }
};

}  // namespace muster
