// The checksum is of what was given to the kernel, and is computed while the bytes are still in the
// processor's cache.
#include "muster/checkpoint/files/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// O_EXCL and O_NOFOLLOW: nobody else's file is written into, whatever lies there.
DurableFile::DurableFile(const std::string& folder, const std::string& name)
    : path_(cat(folder, "/", name)),
      record_{.name = name},
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644)) {
  if (!fd_.valid())
    fail_errno(errno, "checkpoint: cannot create '", path_, "'");
}

void DurableFile::write(const void* bytes, size_t size) {
  constexpr size_t kPiece = 8 << 20;
  const auto* from = static_cast<const char*>(bytes);
  const char* const end = from + size;
  while (from != end) {
    const size_t left = end - from;
    const ssize_t n = ::write(fd_.get(), from, std::min(left, kPiece));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail_errno(
          errno, "checkpoint: cannot write to '", path_, "' after ", record_.bytes, " bytes");
    hash_.update(from, n);
    from += n;
    record_.bytes += n;
  }
}

// close() may tell of a failure too, as on NFS.
WrittenFile DurableFile::finish() {
  if (::fsync(fd_.get()) != 0)
    fail_errno(errno, "checkpoint: cannot write '", path_, "' to the disk");
  if (::close(fd_.release()) != 0)
    fail_errno(errno, "checkpoint: cannot close '", path_, "'");
  record_.sha256 = hash_.hex();
  return record_;
}

// fsync of a file does not write its name, which is in the folder.
void sync_folder(const std::string& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid())
    fail_errno(errno, "checkpoint: cannot open the folder '", folder, "'");
  if (::fsync(fd.get()) != 0)
    fail_errno(errno, "checkpoint: cannot write the folder '", folder, "' to the disk");
}

}  // namespace muster
