// To be preloaded into a program: what it hands to the disk is told in a file, and held back as
// long as another file is there.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

void tell(const char* call, int fd) {
  const char* const told = ::getenv("SYNC_TOLD");
  if (told == nullptr)
    return;
  char link[64];
  char path[4096] = {};
  ::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (::readlink(link, path, sizeof(path) - 1) < 0)
    return;
  char line[4200];
  const int size = ::snprintf(line, sizeof(line), "%s %s\n", call, path);
  const int file = ::open(told, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (::write(file, line, static_cast<size_t>(size)) < 0)
    ::_exit(99);
  ::close(file);
}

int sync_when_let(const char* call, long number, int fd) {
  const char* const hold = ::getenv("SYNC_HOLD");
  const bool held = hold != nullptr && ::access(hold, F_OK) == 0;
  tell(held ? "held" : call, fd);
  while (held && ::access(hold, F_OK) == 0)
    ::usleep(2'000);
  return static_cast<int>(::syscall(number, fd));
}

}  // namespace

extern "C" int fsync(int fd) {
  return sync_when_let("fsync", SYS_fsync, fd);
}

extern "C" int fdatasync(int fd) {
  return sync_when_let("fdatasync", SYS_fdatasync, fd);
}
