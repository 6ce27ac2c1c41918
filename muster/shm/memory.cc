// A memfd is made as large as the layout, which takes addresses and no memory. Pages come to exist
// by fallocate(), which fails where the machine has none; writing to one that does not exist would
// end the process instead.
#include "muster/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>

#include "muster/base/error.h"
#include "muster/base/memory_group.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster::shm {

namespace {

std::atomic<size_t> mapped{0};  // bytes of addresses, of all such memory of this process

// Offsets in a file are signed.
off_t file_offset(size_t bytes) {
  return bytes;
}

std::byte* map_whole(int fd, size_t bytes) {
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED)
    fail_errno(cat("shared memory: cannot map ",
                   format_bytes(bytes),
                   " of addresses, the least that the group needs; raise the limit (ulimit -v), or "
                   "set MUSTER_BACKEND=gloo, which needs none"),
               errno);
  mapped += bytes;
  ::madvise(data, bytes, MADV_DONTDUMP);  // a core dump would touch, and so allocate, all of it
  return static_cast<std::byte*>(data);
}

[[noreturn]] void fail_for_want(const std::string& wanted, const std::string& left) {
  throw unavailable("shared memory: expected ",
                    wanted,
                    " to be free for the group's memory, got ",
                    left,
                    "; raise the limit, use fewer ranks, or set MUSTER_BACKEND=gloo");
}

// The largest file that this process may make.
rlim_t file_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// The kernel does not refuse a file beyond the limit: it sends SIGXFSZ.
void check_file_limit(size_t bytes) {
  const rlim_t limit = file_limit();
  if (limit == RLIM_INFINITY || limit >= bytes)
    return;
  const Strings texts = format_compared_bytes({bytes, limit});
  throw unavailable("shared memory: expected files of ",
                    texts[0],
                    " to be allowed (addresses, not memory), got a limit of ",
                    texts[1],
                    " (ulimit -f); raise it, or set MUSTER_BACKEND=gloo");
}

}  // namespace

SharedMemory SharedMemory::make(size_t bytes) {
  check_file_limit(bytes);
  Fd fd(::memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid())
    fail_errno("shared memory: cannot make a memfd", errno);
  if (::ftruncate(fd.get(), file_offset(bytes)) != 0) {
    fail_errno(cat("shared memory: cannot make a memfd of ", format_bytes(bytes)), errno);
  }
  // Shrinking it would be a SIGBUS for the others.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return map(std::move(fd), bytes);
}

SharedMemory SharedMemory::map(Fd fd, size_t bytes) {
  std::byte* const data = map_whole(fd.get(), bytes);
  return {std::move(fd), data, bytes};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr)
    return;
  ::munmap(data_, size_);
  mapped -= size_;
}

size_t SharedMemory::mapped_bytes() {
  return mapped;
}

bool SharedMemory::has_room(size_t bytes) {
  const rlim_t limit = file_limit();
  if (limit != RLIM_INFINITY && limit < bytes)
    return false;
  constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const addresses = ::mmap(nullptr, bytes, PROT_NONE, kNothing, -1, 0);
  if (addresses == MAP_FAILED)
    return false;
  ::munmap(addresses, bytes);
  return true;
}

void SharedMemory::keep_first(size_t bytes) {
  if (bytes >= size_)
    return;
  ::munmap(data_ + bytes, size_ - bytes);
  mapped -= size_ - bytes;
  size_ = bytes;
}

void SharedMemory::reserve(size_t offset, size_t bytes) {
  if (bytes == 0)
    return;
  // The kernel would not refuse what the control group does not have: it would kill somebody. The
  // turn keeps other processes from counting on the same memory meanwhile.
  const MemoryTurn turn;
  if (const auto available = available_memory()) {
    const uint64_t left = std::max<int64_t>(*available, 0);
    if (left < bytes) {
      const Strings texts = format_compared_bytes({bytes, left});
      fail_for_want(texts[0], texts[1]);
    }
  }
  int rc = 0;
  do {
    rc = ::fallocate(fd_.get(), 0, file_offset(offset), file_offset(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0 && (errno == ENOSPC || errno == ENOMEM))
    fail_for_want(format_bytes(bytes), "less");
  if (rc != 0)
    fail_errno("shared memory: cannot reserve", errno);
}

void SharedMemory::release(size_t offset, size_t bytes) {
  ::fallocate(fd_.get(),
              FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              file_offset(offset),
              file_offset(bytes));
}

}  // namespace muster::shm
