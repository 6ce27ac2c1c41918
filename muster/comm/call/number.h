// A number that a thread's calls carry, which ranks compare where they compare calls: two that look
// alike otherwise (of equal modules, one after the other) are two calls then. Set by what calls a
// group's collectives; read by ProcessGroup and by backends that compare calls themselves.
#pragma once

#include <cstdint>
#include <utility>

namespace muster {

// While it lives. -1: none.
class CallNumber {
 public:
  explicit CallNumber(int64_t number) : before_(std::exchange(current_, number)) {}
  ~CallNumber() { current_ = before_; }
  CallNumber(const CallNumber&) = delete;
  CallNumber& operator=(const CallNumber&) = delete;

  static int64_t here() { return current_; }

 private:
  const int64_t before_;
  inline static thread_local int64_t current_ = -1;
};

}  // namespace muster
