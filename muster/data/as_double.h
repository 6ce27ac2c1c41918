// Counts of pixels and samples as floating numbers, for shares and scales, and back.
#pragma once

#include <cmath>
#include <cstdint>

namespace muster {

// Exact: counts stay far below 2^53.
inline double as_double(int64_t count) {
  return static_cast<double>(count);
}

// For arithmetic that is to round as float32's.
template <class Number>
float as_float(Number value) {
  return static_cast<float>(value);
}

// Python's round(), which torchvision uses: a half goes to the even neighbour.
inline int64_t rounded(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

}  // namespace muster
