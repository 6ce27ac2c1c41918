// Bytes that nobody can guess, from the kernel: for secrets, and for names that no other process
// takes.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>

#include "muster/base/error.h"

namespace muster {

// At most 256 bytes. Throws: io.
inline void fill_random(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno("getrandom", errno);
}

// `count` of them, at most 256. Throws: io.
inline std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  fill_random(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace muster
