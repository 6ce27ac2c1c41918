// How it works: the locks are bytes of the file, far behind any data: one for the operation, and
// one for each rank. A lock of an open file description is released when its last descriptor is
// closed, so also when its process is killed.
#include "muster/store/file_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <cstdint>

#include "muster/base/byte_lock.h"
#include "muster/base/error.h"
#include "muster/base/pauses.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// A lock may lie where the file has no bytes.
constexpr off_t kOperation = off_t{1} << 60;
constexpr off_t kMembers = kOperation + 1;

// True when the lock was taken (or released), false when another holds it.
bool set_lock(int fd, short type, off_t at) {
  const int error = set_byte_lock(fd, type, at, 1);
  if (error != 0 && error != EAGAIN && error != EACCES)
    fail_errno("file store: cannot lock the file (a file system without locks?)", error);
  return error == 0;
}

// The start of some range that another holds; nothing when nobody does.
std::optional<off_t> locked_by_another(int fd, off_t start, off_t size) {
  struct flock lock = byte_lock(F_WRLCK, start, size);
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0)
    fail_errno("file store: cannot see the file's locks", errno);
  if (lock.l_type == F_UNLCK)
    return std::nullopt;
  return lock.l_start;
}

}  // namespace

// The lock is asked for again and again: to wait for it in the kernel has no time limit.
void lock_operation(int fd, const std::string& path, const Deadline& deadline) {
  Pauses pauses{std::chrono::microseconds(20), milliseconds(2)};
  while (!set_lock(fd, F_WRLCK, kOperation)) {
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  "file store: expected the lock of '",
                  path,
                  "' to be released, got none; see whether a process that uses it is stopped "
                  "(`ps`: state T)");
    pauses.wait(deadline);
  }
}

void unlock_operation(int fd) {
  set_lock(fd, F_UNLCK, kOperation);
}

// The lock is kept until unlock_member(), or the process's end.
bool lock_member(int fd, int rank) {
  return set_lock(fd, F_WRLCK, kMembers + rank);
}

void unlock_member(int fd, int rank) {
  set_lock(fd, F_UNLCK, kMembers + rank);
}

// The kernel names some conflicting range, not the first, so the search narrows down to what lies
// before it.
std::optional<int> lowest_living_member(int fd) {
  std::optional<int> lowest;
  off_t num_ranks = INT32_MAX;
  while (num_ranks > 0) {
    const auto locked = locked_by_another(fd, kMembers, num_ranks);
    if (!locked)
      break;
    num_ranks = *locked - kMembers;
    lowest = static_cast<int>(num_ranks);
  }
  return lowest;
}

// The caller's own lock is not seen, as it does not stand in its own way.
bool is_member_alive(int fd, int rank) {
  return locked_by_another(fd, kMembers + rank, 1).has_value();
}

}  // namespace muster
