// Mixes numbers into one whose bits depend on all of them.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

// Source: SplitMix64's finaliser.
inline uint64_t mixed(uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}

inline uint64_t mixed(uint64_t a, uint64_t b) {
  return mixed(mixed(a + 0x9e3779b97f4a7c15) + b);
}

// Identifies a list in a name: its length, and a hash of all of it.
template <class T>
std::string fingerprint(const std::vector<T>& values) {
  uint64_t bits = values.size();
  for (const T value : values)
    bits = mixed(bits, std::bit_cast<uint64_t>(value));
  return cat(values.size(), " numbers ", bits);
}

}  // namespace muster
