// How a record of an activity file is written so that readers see whether they have it whole
// (activity_layout.h). For the writer alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace muster {

// Others read the file at any time, so each field is written and read in one piece.
template <class T>
void put(T& field, std::type_identity_t<T> value) {
  std::atomic_ref(field).store(value, std::memory_order_relaxed);
}
template <class T>
T value_of(T& field) {
  return std::atomic_ref(field).load(std::memory_order_relaxed);
}

// A record changes only between these two calls.
template <class Record>
void open_record(Record& record, uint64_t number) {
  put(record.tail, number);
  std::atomic_thread_fence(std::memory_order_release);
}
template <class Record>
void close_record(Record& record, uint64_t number) {
  std::atomic_ref(record.head).store(number, std::memory_order_release);
}

}  // namespace muster
