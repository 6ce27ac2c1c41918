// To be preloaded: writes each fsync, fdatasync and rename of a program into the file
// RECORDED_SYNCS, a line each, before it is done. While the file BLOCKED_SYNCS exists, fdatasync
// does not return: a disk that takes nothing.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

template <class Function>
Function* next_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void record(const std::string& line) {
  const char* const path = std::getenv("RECORDED_SYNCS");
  if (path == nullptr)
    return;
  const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string whole = line + "\n";
  (void)!::write(file, whole.data(), whole.size());
  ::close(file);
}

std::string path_of(int file) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof(path));
  return size < 0 ? "?" : std::string(path, static_cast<size_t>(size));
}

void wait_while_blocked() {
  const char* const path = std::getenv("BLOCKED_SYNCS");
  while (path != nullptr && ::access(path, F_OK) == 0)
    ::usleep(2000);
}

}  // namespace

extern "C" {

int fsync(int file) {
  record("fsync " + path_of(file));
  return next_function<int(int)>("fsync")(file);
}

int fdatasync(int file) {
  record("fdatasync " + path_of(file));
  wait_while_blocked();
  return next_function<int(int)>("fdatasync")(file);
}

int rename(const char* from, const char* to) noexcept {
  record(std::string("rename ") + from + " " + to);
  return next_function<int(const char*, const char*)>("rename")(from, to);
}

int renameat2(
    int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  record(std::string("rename ") + from + " " + to);
  return next_function<int(int, const char*, int, const char*, unsigned)>("renameat2")(
      from_folder, from, to_folder, to, flags);
}
}
