// How a record of an activity file is written so that readers see whether they have it whole
// (activity_layout.h). For the writer alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "muster/base/no_copy.h"

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

// A record changes only while one of these lives. `number` becomes the record's own.
template <class Record>
class RecordChange : NoCopy {
 public:
  RecordChange(Record& record, uint64_t number) noexcept : record_(record), number_(number) {
    put(record_.tail, number_);
    std::atomic_thread_fence(std::memory_order_release);
  }
  explicit RecordChange(Record& record) noexcept
      : RecordChange(record, value_of(record.head) + 1) {}
  ~RecordChange() { std::atomic_ref(record_.head).store(number_, std::memory_order_release); }

 private:
  Record& record_;
  const uint64_t number_;
};

}  // namespace muster
