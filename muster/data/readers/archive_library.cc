// libarchive by dlopen: every function that tar_reader.cc calls is looked up by name once, so that
// a library without one of them is refused when it is loaded and not in the middle of an archive.
#include "muster/data/readers/archive_library.h"

#include "muster/base/strings.h"

namespace muster {

ArchiveLibrary::ArchiveLibrary(const std::string& name)
    : LoadedLibrary(
          name,
          cat("tar: expected ", name, " to read shards"),
          "install libarchive's library (Debian: libarchive13, from 13 on libarchive13t64)") {}

// The first call loads the library. A load that failed is tried again by the next call.
const ArchiveLibrary& archive_library() {
  static const ArchiveLibrary library("libarchive.so.13");  // every libarchive 3
  return library;
}

}  // namespace muster
