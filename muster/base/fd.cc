// How it works: plain system calls that go on after a signal and after a part was read or written,
// and that name the path when they fail.
#include "muster/base/fd.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <source_location>
#include <system_error>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/poll_one.h"
#include "muster/base/random_bytes.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// No text that a person writes is longer.
constexpr size_t kSmallBytes = size_t{64} << 20;

// Reads to the end, or one byte more than `most`, which tells the caller that there are more.
std::string read_until(const Fd& fd,
                       const std::string& path,
                       size_t most,
                       std::source_location where) {
  std::string bytes;
  char buffer[65536];
  while (bytes.size() <= most) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n == 0)
      return bytes;
    if (n > 0) {
      bytes.append(buffer, n);
    } else if (const int why = errno; why != EINTR) {
      fail_errno(cat("cannot read '", path, "'"), why, where);
    }
  }
  bytes.resize(most + 1);
  return bytes;
}

// The caller has read at most one byte more than a small file has.
std::string expect_small(std::string bytes, const std::string& path, std::source_location where) {
  if (bytes.size() <= kSmallBytes)
    return bytes;
  throw invalid_argument(FirstPart("expected a file of at most 64 MiB as '", where),
                         printable(path),
                         "', got more; name another");
}

// Returns "'/a/file'" or "to standard output"; of a descriptor whose path nobody told, what the
// kernel calls it.
std::string shown_target(int fd, const std::string& path) {
  if (!path.empty())
    return in_quotes(path);
  if (fd == STDOUT_FILENO || fd == STDERR_FILENO)
    return fd == STDOUT_FILENO ? "to standard output" : "to standard error";
  std::error_code unknown;
  const auto target = std::filesystem::read_symlink(cat("/proc/self/fd/", fd), unknown);
  return unknown ? cat("to descriptor ", fd) : in_quotes(printable(target.string()));
}

}  // namespace

void Fd::reset(int fd) {
  if (fd_ >= 0)
    ::close(fd_);
  fd_ = fd;
}

// An end that a child is to have is opened to it by whoever starts the child.
Pipe open_pipe(int flags, std::source_location where) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0)
    fail_errno("cannot make a pipe", errno, where);
  return {.read_end = Fd(ends[0]), .write_end = Fd(ends[1])};
}

Fd open_path(const std::string& path,
             int flags,
             const char* failing,
             mode_t mode,
             std::source_location where) {
  Fd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  const int why = errno;
  if (!fd.valid())
    fail_errno(cat(failing, " '", path, "'"), why, where);
  return fd;
}

ReaderGone::ReaderGone() : Error(ErrorCode::io, "write: Broken pipe") {}

// An end of the reader is an error of its own only for what is printed.
void write_all(int fd, const std::string& bytes, const std::string& path) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    const bool is_output = fd == STDOUT_FILENO && path.empty();
    if (n >= 0) {
      done += n;
    } else if (errno == EPIPE && is_output) {
      throw ReaderGone();
    } else if (errno == EAGAIN) {
      poll_one(fd, POLLOUT, -1);  // others have made the pipe non-blocking
    } else if (errno != EINTR) {
      const int why = errno;
      fail_errno(why, "cannot write ", shown_target(fd, path));
    }
  }
}

// A write that failed half way is cut off again.
void append_whole(int fd, const std::string& bytes, const std::string& path) {
  const off_t before = ::lseek(fd, 0, SEEK_END);
  try {
    write_all(fd, bytes, path);
  } catch (const Error&) {
    [[maybe_unused]] const bool is_cut = before >= 0 && ::ftruncate(fd, before) == 0;
    throw;
  }
}

// A pipe or a device that never ends is cut at `most` bytes.
std::string read_file(const std::string& path, size_t most, std::source_location where) {
  return read_until(open_path(path, O_RDONLY, "cannot open", 0, where), path, most, where);
}

std::optional<std::string> try_read_file(const std::string& path, size_t most) {
  try {
    return read_file(path, most);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string tail_of_file(int fd, off_t most) {
  struct stat info{};
  if (::fstat(fd, &info) != 0)
    return {};
  const off_t from = std::max<off_t>(0, info.st_size - most);
  std::string text(info.st_size - from, '\0');
  text.resize(std::max<ssize_t>(0, ::pread(fd, text.data(), text.size(), from)));
  return text;
}

std::string read_small_file(const std::string& path, std::source_location where) {
  return expect_small(read_file(path, kSmallBytes, where), path, where);
}

// O_NONBLOCK opens a pipe without its other end, and the look at the file then refuses it.
Fd open_plain_file(const std::string& path, const std::string& who, std::source_location where) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info = {};
  const bool is_open = fd.valid() && ::fstat(fd.get(), &info) == 0;
  const int why = errno;
  if (!is_open)
    fail_errno(cat(who, "cannot open '", path, "'"), why, where);
  if (S_ISREG(info.st_mode))
    return fd;
  throw Error(ThrownCode(ErrorCode::io, where),
              who,
              "expected a file at '",
              printable(path),
              "', got something else; correct the path");
}

std::string read_plain_file(const std::string& path, size_t most, std::source_location where) {
  return read_until(open_plain_file(path, {}, where), path, most, where);
}

std::string read_small_plain_file(const std::string& path, std::source_location where) {
  return expect_small(read_plain_file(path, kSmallBytes, where), path, where);
}

// The name stays in the same folder, so that it can be renamed in one step.
std::string name_aside(const std::string& path) {
  return cat(path, ".tmp-", to_hex(random_bytes(8)));
}

void rename_aside(const std::string& aside, const std::string& path) {
  if (::rename(aside.c_str(), path.c_str()) == 0)
    return;
  const int error = errno;
  ::unlink(aside.c_str());
  fail_errno(error, "cannot write '", path, "'");
}

// NFS knows no renameat2 with flags, but links.
int rename_if_new(const std::string& aside, const std::string& path) {
  int result = ::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE);
  if (result != 0 && errno == EINVAL)
    result = ::link(aside.c_str(), path.c_str());
  return result == 0 ? 0 : errno;
}

// An NFS client asks the server when a file is opened; what it knows of a name alone may be old.
bool is_at(const Fd& file, const std::string& path) {
  constexpr int kLook = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const Fd found(::open(path.c_str(), kLook));
  struct stat ours{};
  struct stat there{};
  if (::fstat(file.get(), &ours) != 0 || ::fstat(found.get(), &there) != 0)
    return false;
  return ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

void write_aside(const std::string& aside, const std::string& path, const std::string& bytes) {
  const Fd fd(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid())
    fail_errno(errno, "cannot write '", path, "'");
  try {
    write_all(fd.get(), bytes, path);
  } catch (const Error&) {
    ::unlink(aside.c_str());
    throw;
  }
}

// A file that was not written whole is removed, and the old one stays.
void write_file(const std::string& path, const std::string& bytes) {
  const auto aside = name_aside(path);
  write_aside(aside, path, bytes);
  rename_aside(aside, path);
}

}  // namespace muster
