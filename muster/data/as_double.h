// Counts of pixels and samples as floating numbers, for shares and scales.
#pragma once

#include <cstdint>

namespace muster {

// Exact: counts stay far below 2^53.
inline double as_double(int64_t count) {
  return static_cast<double>(count);
}

}  // namespace muster
