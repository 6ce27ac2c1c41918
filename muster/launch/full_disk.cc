// The disk is looked at when the card is made, a moment after the failure. A file system that has
// no size, as that of /proc, is never full.
#include "muster/launch/full_disk.h"

#include <sys/statvfs.h>

#include "muster/base/strings.h"

namespace muster {

std::string full_disk_line(const std::string& path, const char* what, const char* writer) {
  struct statvfs info{};
  const bool is_known = ::statvfs(path.c_str(), &info) == 0 && info.f_blocks > 0;
  if (!is_known || info.f_bavail > 0)
    return "";
  return cat("  disk      it is full now where ",
             what,
             " is; what ",
             writer,
             " wrote may have failed for that\n");
}

}  // namespace muster
