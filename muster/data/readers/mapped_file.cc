// Maps a regular file. O_NONBLOCK keeps open() from waiting on a pipe of that name, which is
// refused right after. An empty file has no mapping, as mmap refuses a length of 0.
#include "muster/data/readers/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/data/plain_file.h"

namespace muster {

// The mapping outlives the descriptor, which is closed at the end of the constructor.
MappedFile::MappedFile(const std::string& path, Access access) : path_(path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid())
    fail_errno(errno, "read: cannot open '", path, "'");
  struct stat info{};
  if (::fstat(file.get(), &info) != 0)
    fail_errno(errno, "read: cannot look at '", path, "'");
  expect_plain_file("read", path, info.st_mode);
  size_ = info.st_size;
  if (size_ == 0)
    return;
  // Writes go to pages of this process alone, by MAP_PRIVATE, and never to the file.
  const int protection = access == Access::own_copy ? PROT_READ | PROT_WRITE : PROT_READ;
  // Without a reserve: a file larger than memory and swap may be mapped for writing too.
  void* const memory =
      ::mmap(nullptr, size_, protection, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (memory == MAP_FAILED)
    fail_errno(errno, "read: cannot map '", path, "'");
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    ::munmap(data_, size_);
}

}  // namespace muster
