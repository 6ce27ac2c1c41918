// A number that a thread's calls carry, which ranks compare where they compare calls: two calls
// that look alike otherwise (of equal modules, one after the other) differ then. Whoever calls a
// group's collectives sets it; ProcessGroup reads it, and so do backends that compare calls
// themselves.
#pragma once

#include <cstdint>
#include <utility>

#include "muster/base/no_copy.h"

namespace muster {

// The calls of this thread have the number while it lives. -1: none.
class CallNumber : NoCopy {
 public:
  explicit CallNumber(int64_t number) : before_(std::exchange(current_, number)) {}
  ~CallNumber() { current_ = before_; }

  static int64_t here() { return current_; }

 private:
  const int64_t before_;
  inline static thread_local int64_t current_ = -1;
};

}  // namespace muster
