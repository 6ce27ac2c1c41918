#include "muster/store/file_lock.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// Far behind any data: a lock may lie where the file has no bytes.
constexpr off_t kOperation = off_t{1} << 60;
constexpr off_t kMembers = kOperation + 1;

struct flock range(short type, off_t start, off_t size) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = size;
  return lock;
}

// True when the lock was taken (or released), false when another holds it.
bool set_lock(int fd, short type, off_t at) {
  struct flock lock = range(type, at, 1);
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0)
    return true;
  if (errno == EAGAIN || errno == EACCES)
    return false;
  fail_errno("file store: cannot lock the file (a file system without locks?)", errno);
}

std::optional<off_t> first_locked(int fd, off_t start, off_t size) {
  struct flock lock = range(F_WRLCK, start, size);
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0)
    fail_errno("file store: cannot see the file's locks", errno);
  if (lock.l_type == F_UNLCK)
    return std::nullopt;
  return lock.l_start;
}

}  // namespace

void lock_operation(int fd, const std::string& path, const Deadline& deadline) {
  auto pause = std::chrono::microseconds(20);
  while (!set_lock(fd, F_WRLCK, kOperation)) {
    if (deadline.passed()) {
      throw Error(ErrorCode::timeout,
                  cat("file store: expected the lock of '",
                      path,
                      "' to be released, got none; see whether a process that uses it is stopped "
                      "(`ps`: state T)"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(2000));
  }
}

void unlock_operation(int fd) {
  set_lock(fd, F_UNLCK, kOperation);
}

bool lock_member(int fd, int rank) {
  return set_lock(fd, F_WRLCK, kMembers + rank);
}

void unlock_member(int fd, int rank) {
  set_lock(fd, F_UNLCK, kMembers + rank);
}

std::optional<int> lowest_living_member(int fd) {
  // GETLK names some conflicting range, not the first: narrow down to what lies before it.
  std::optional<int> lowest;
  off_t end = kMembers + off_t{INT32_MAX};
  while (const auto locked = first_locked(fd, kMembers, end - kMembers)) {
    lowest = static_cast<int>(*locked - kMembers);
    end = *locked;
    if (end == kMembers)
      break;
  }
  return lowest;
}

bool is_member_alive(int fd, int rank) {
  return first_locked(fd, kMembers + rank, 1).has_value();
}

}  // namespace muster
