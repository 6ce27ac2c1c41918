#include "muster/base/fd.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void write_all(int fd, const std::string& bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      fail_errno(path.empty() ? "write" : cat("cannot write '", path, "'"), errno);
    }
  }
}

std::string read_file(const std::string& path, size_t most) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail_errno(cat("cannot open '", path, "'"), errno);
  std::string bytes;
  char buffer[65536];
  while (bytes.size() <= most) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n == 0) return bytes;
    if (n > 0) {
      bytes.append(buffer, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      fail_errno(cat("cannot read '", path, "'"), errno);
    }
  }
  bytes.resize(most + 1);
  return bytes;
}

std::string read_small_file(const std::string& path) {
  constexpr size_t kMost = size_t{64} << 20;
  std::string bytes = read_file(path, kMost);
  if (bytes.size() <= kMost) return bytes;
  throw Error(ErrorCode::invalid_argument,
              cat("expected a file of at most 64 MiB as '", printable(path), "', got more; name another"));
}

std::string name_aside(const std::string& path) {
  std::array<unsigned char, 8> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail_errno("getrandom", errno);
  std::string name = path + ".tmp-";
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

void write_file(const std::string& path, const std::string& bytes) {
  const std::string aside = name_aside(path);
  {
    const Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd.valid()) fail_errno(cat("cannot create '", aside, "'"), errno);
    try {
      write_all(fd.get(), bytes, path);
    } catch (const Error&) {
      ::unlink(aside.c_str());
      throw;
    }
  }
  if (::rename(aside.c_str(), path.c_str()) != 0)
    fail_errno(cat("cannot rename '", aside, "' to '", path, "'"), errno);
}

}  // namespace muster
