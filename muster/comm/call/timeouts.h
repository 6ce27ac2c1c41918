// Reads the time that a caller of a backend gives an operation.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>

#include "muster/base/clock.h"

namespace muster {

// Longer than any wait.
inline constexpr milliseconds kForever = Deadline::kFarthest;

// A number below 0 is what PyTorch makes of one that it cannot count, as datetime.timedelta.max.
inline milliseconds countable(milliseconds timeout) {
  return timeout < milliseconds(0) || timeout > kForever ? kForever : timeout;
}

inline milliseconds timeout_of(milliseconds asked, milliseconds usual) {
  return asked == c10d::kUnsetTimeout ? usual : countable(asked);
}

}  // namespace muster
