// Locks on a file's bytes that belong to the open file: the kernel lets them go with its last
// descriptor, also when its process is killed. Another open file of this process is another's.
#pragma once

#include <fcntl.h>

#include <cerrno>

namespace muster {

// As F_OFD_SETLK and F_OFD_GETLK take it. A size of 0: all bytes from `start` on.
inline struct flock byte_lock(short type, off_t start = 0, off_t size = 0) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = size;
  return lock;
}

// Takes the lock (F_WRLCK, F_RDLCK), or lets it go (F_UNLCK). Returns 0, or an errno: EAGAIN or
// EACCES where another has some of these bytes.
inline int set_byte_lock(int fd, short type, off_t start = 0, off_t size = 0) {
  struct flock lock = byte_lock(type, start, size);
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0 ? 0 : errno;
}

// Whether another has a lock on any of the file's bytes, as far as the file system tells.
inline bool is_locked_by_another(int fd) {
  struct flock lock = byte_lock(F_WRLCK);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace muster
