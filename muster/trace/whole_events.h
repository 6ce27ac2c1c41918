// The events of a file that a rank may be writing to, each of them whole. Knows the order in which
// a rank writes an event, and nothing of files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "muster/trace/event_layout.h"

namespace muster {

inline EventKind kind_of(const TraceEvent& event) {
  const bool is_known = event.kind <= static_cast<uint32_t>(EventKind::thread_name);
  return is_known ? static_cast<EventKind>(event.kind) : EventKind::none;
}

// `read` copies the events from the `number`-th on and returns how many there were; 0 is the end.
// Calls `take` with each that is whole. A copy may have the kind of an event, which the rank writes
// last, and not yet its times: so each piece is read twice, and what had a kind the first time is
// whole the second time.
template <class Read, class Take>
void for_each_whole_event(const Read& read, const Take& take) {
  constexpr size_t kEventsAtOnce = 4096;
  std::vector<TraceEvent> first(kEventsAtOnce), second(kEventsAtOnce);
  size_t number = 0;
  for (;;) {
    const size_t told = read(std::span(first), number);
    if (told == 0)
      return;
    const size_t there = std::min(told, read(std::span(second).first(told), number));
    for (size_t i = 0; i < there; ++i) {
      if (kind_of(first[i]) != EventKind::none)
        take(second[i]);
    }
    number += told;
  }
}

}  // namespace muster
