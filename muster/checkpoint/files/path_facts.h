// Facts about a path, found without opening it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "muster/base/folders.h"

namespace muster {

// A link that leads nowhere counts too.
inline bool exists_at(const std::string& path) {
  struct stat info{};
  return ::lstat(path.c_str(), &info) == 0;
}

// The size of a file; for a link, of what it leads to, as hubs' caches have their files; 0: there
// is nothing.
inline uint64_t size_or_none(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

}  // namespace muster
