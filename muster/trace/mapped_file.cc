// How it works: open(2) and mmap(2), with messages that name the file.
#include "muster/trace/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// A link is not followed: the folder may be one that others can write to.
Fd open_mapped_file(const std::string& who, const std::string& path, int flags) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error)
    throw Error(ErrorCode::io,
                who,
                ": cannot make the folder of '",
                printable(path),
                "': ",
                error.message());
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0644));
  if (!file.valid())
    fail_errno(errno, who, ": cannot open '", path, "'");
  return file;
}

void* map_bytes(const std::string& who, const Fd& file, const std::string& path, size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED)
    fail_errno(errno, who, ": cannot map '", path, "'");
  return memory;
}

}  // namespace muster
