// What the readers of whole files refuse by its kind. For the sources of this folder.
#pragma once

#include <sys/stat.h>

#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// Throws: io unless `mode` is a regular file's.
inline void expect_plain_file(const char* who, const std::string& path, mode_t mode) {
  if (S_ISREG(mode))
    return;
  const char* const got = S_ISDIR(mode) ? "a folder" : "a special file";
  throw Error(
      ErrorCode::io, who, ": expected a file at '", path, "', got ", got, "; correct the path");
}

}  // namespace muster
