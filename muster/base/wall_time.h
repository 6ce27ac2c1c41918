// The time by the wall's clock, for records that people and other hosts read.
#pragma once

#include <chrono>

namespace muster {

inline double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace muster
