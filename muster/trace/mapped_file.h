// Files that a rank writes through a mapping, so that all of it is there when the rank is killed.
#pragma once

#include <cstddef>
#include <string>

#include "muster/base/fd.h"

namespace muster {

// Opens the file, with the flags and those of every such file, and makes its folder. `who` begins
// the message. Throws: io.
Fd open_mapped_file(const std::string& who, const std::string& path, int flags);

// Maps the first `bytes` of it. Throws: io.
void* map_bytes(const std::string& who, const Fd& file, const std::string& path, size_t bytes);

// Maps the beginning of it as a Layout.
template <class Layout>
Layout* map_file(const std::string& who, const Fd& file, const std::string& path) {
  return static_cast<Layout*>(map_bytes(who, file, path, sizeof(Layout)));
}

}  // namespace muster
