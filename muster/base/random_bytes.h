// Bytes that nobody can guess, from the kernel: for names that no other process takes.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <string>

#include "muster/base/error.h"

namespace muster {

// `count` of them, at most 256. Throws: io.
inline std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count))
    fail_errno("getrandom", errno);
  return bytes;
}

}  // namespace muster
