// A file in memory with what a fuzzer gives, for parsers that open a path.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (!fd_.valid())
      std::abort();
    write_all(fd_.get(), bytes);
  }
  std::string path() const { return cat("/proc/self/fd/", fd_.get()); }

 private:
  Fd fd_;
};

}  // namespace muster
