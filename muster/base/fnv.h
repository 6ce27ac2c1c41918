// FNV-1a, a hash that is the same everywhere and for good. No secret keeps anybody from finding two
// texts of one hash. Source: G. Fowler, L. Noll and P. Vo.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325;

// Goes on from `hash`, that of the text before this one.
inline uint64_t fnv1a(std::string_view text, uint64_t hash = kFnvStart) {
  for (const unsigned char byte : text)
    hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

}  // namespace muster
