// A whole file as memory, read from the disk where it is touched. Used by the readers of files that
// may be larger than memory; knows nothing of their formats.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "muster/base/no_copy.h"

namespace muster {

class MappedFile : NoCopy {
 public:
  enum class Access {
    read,      // pages that cannot be written
    own_copy,  // what is written stays with this process, and never reaches the file
  };
  // Throws: io when it cannot be read or is no regular file. Whoever cuts the file short while it
  // is mapped ends this process with SIGBUS, as with every mapped file.
  explicit MappedFile(const std::string& path, Access access = Access::read);
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }
  char* data() const { return data_; }

 private:
  std::string path_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace muster
