// How far apart words lie that different processors write to all the time.
#pragma once

#include <cstddef>

namespace muster {

// x86 fetches lines of 64 bytes in pairs. arm64 has lines of 64 bytes (Grace) and of 128. A file or
// a protocol that machines of both kinds share says a number of its own.
inline constexpr size_t kCacheLine = 128;

}  // namespace muster
